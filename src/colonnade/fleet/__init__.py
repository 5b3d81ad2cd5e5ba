"""Sharing a machine: leases of cards, and the launching of programs."""
