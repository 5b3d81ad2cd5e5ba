"""A card per setting: trials of an Optuna study, each in a process of its own on leased cards.

In come an objective or a command and what to try; out come a study in Optuna's storage and a folder for each
trial. `sweeper.py` is the whole of it from top to bottom, `trial_book.py` says who owns a trial when.
"""
