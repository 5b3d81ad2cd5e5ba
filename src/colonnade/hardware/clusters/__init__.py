"""Connects the machines of a cluster, and keeps them in touch while they train."""
