"""`colonnade selftest`: whether all devices of this machine compute and copy as one does.

In comes a list of devices; out go verdicts, and a report without names to send in.
"""
