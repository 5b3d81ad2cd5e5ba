"""What moves between devices: sums of gradients (all-reduce), copies, and work put on a device.

In come tensors that lie on several devices; out go sums on one of them, or copies on all.
"""
