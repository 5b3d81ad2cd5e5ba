"""What goes from device to device: sums along an order of pairs, and work that is put on a device.

In come tensors that lie on several devices; out go sums on one of them, or copies on all.
"""
