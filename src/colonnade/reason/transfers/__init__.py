"""What moving bytes costs, and in which order devices add up: copies, trees, rings.

In comes a topology; out go seconds, and the pairs that `run/move` sends along.
"""
