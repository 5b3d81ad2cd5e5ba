import pytest

from colonnade.sweeps.slots.ending import of_exit


@pytest.mark.parametrize(
    ("code", "says", "again"),
    [
        (1, "exit code 1", False),
        (75, "asks to be started again", True),
        (137, "SIGKILL, as the system does when memory runs out", True),
        (139, "SIGSEGV", True),
        (255, "exit code 255", False),
    ],
)
def test_exit_codes(code, says, again):
    ending = of_exit(code)
    assert ending.kind == "failed"
    assert says in ending.reason
    assert ending.again is again
