"""What a fit tells while it runs: its bar and log lines, its profile, and the files that a report is made of.

In come the steps that were made; out go lines on the screen and files in `logdir`.
"""
