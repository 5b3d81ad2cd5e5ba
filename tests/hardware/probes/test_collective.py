import numpy as np
import pytest

from colonnade.hardware.probes import collective
from colonnade.hardware.probes.watchdog import Answer


def test_every_number_that_a_collective_adds_is_exact():
    total = np.sum([np.abs(collective.numbers(i, 10_000)) for i in range(64)], axis=0)
    assert total.max() < 2**24
    assert np.array_equal(collective.numbers(1, 50), np.round(collective.numbers(1, 50)))


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({}, "VERSION"),
        ({"NCCL_DEBUG": "INFO"}, "INFO"),
        ({"NCCL_DEBUG": "warn"}, "WARN"),
        ({"NCCL_DEBUG": "NONE"}, "VERSION"),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/nccl.log"}, "VERSION"),
    ],
)
def test_the_user_is_told_by_the_library_what_he_asks_for(monkeypatch, capsys, user, told):
    """As long as it tells its version, from which is known that it took part."""
    seen = []
    line = "host:1:2 [0] NCCL INFO NCCL version 2.21.5+cuda12.5"

    def ask(module, *arguments, seconds, environment):
        seen.append(environment)
        return Answer([], printed=(line, "[]"))

    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(collective, "ask", ask)
    assert collective.ask_cards(2, 1.0)[1] == "2.21.5+cuda12.5"
    assert seen == [{"NCCL_DEBUG": told}]
    assert capsys.readouterr().err == ("" if told == "VERSION" else f"{line}\n")
