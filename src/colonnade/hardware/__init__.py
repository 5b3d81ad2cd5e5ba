"""Cards, devices, and everything that is special about them."""
