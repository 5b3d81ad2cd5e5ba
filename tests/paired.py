"""Running an example, and reading what it prints."""

import re

from fresh import forked


def output(pair, name, *arguments):
    done = forked([f"examples/{pair}/{name}.py", *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def last(text, pattern):
    """The numbers in the last line that matches."""
    return [float(number) for number in list(re.finditer(pattern, text))[-1].groups()]
