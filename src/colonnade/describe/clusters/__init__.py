"""Machines that train together, as plain data: their addresses, who told of them, what fences them off."""
