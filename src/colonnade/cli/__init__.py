"""The command line: one command, one function, no logic.

`colonnade --help` lists the commands in the order of the imports here.
"""

# isort: off
from colonnade.cli.root import app, main
from colonnade.cli import training, machine, sharing, experiments
# isort: on

__all__ = ["app", "experiments", "machine", "main", "sharing", "training"]
