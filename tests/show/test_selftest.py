import re

from colonnade.run.selftest.verdict import Result
from colonnade.show.selftest import report


def test_the_table():
    from rich.console import Console

    speed = {"GB/s": 11.5, "link": "PIX", "published GB/s": 12.0}
    results = [
        Result(
            "first", "one with two", "nothing", "passed", "all well", 0.1, {"bandwidth": {"a to b": speed}}
        ),
        Result("second", "two with one", "a little", "failed", "not well", 0.2, {}),
        Result("third", "one with one", "nothing", "not applicable", "no card", 0.0, {}),
    ]
    console = Console(width=100)
    with console.capture() as text:
        console.print(report(results))
    shown = text.get()
    assert re.search(r"passed +first +0\.1 s +all well", shown)
    assert "a to b: 11.5 GB/s (PIX: 12.0 published)" in shown
    assert re.search(r"FAILED +second .*\n +compares: two with one *\n +allowed: +a little", shown)
    assert "1 passed, 1 failed, 1 not applicable. Please report it" in shown
