import re
import signal
import subprocess

from fresh import COMMAND


def test_leases_shows_who_waits():
    from rich.console import Console

    from colonnade.fleet.lease import LeaseClaim
    from colonnade.fleet.records import LeaseRecord
    from colonnade.show.leases import facts, table

    def claim(number, slots=()):
        when = "2026-05-04T09:12:00.000000+00:00"
        return LeaseClaim(
            ("a", "b"), 2, "0.5", ("python", "\x1b[2Jx.py"), "ada", 7, "box", when, slots, number
        )

    line = [claim(1, ("a", "b")), claim(2), claim(3), LeaseClaim.read(LeaseRecord(4, 12345, None))]
    console = Console(width=120)
    with console.capture() as text:
        console.print(table(line))
    assert "python ?[2Jx.py" in text.get()  # what others wrote does not steer this terminal
    assert re.findall(r"│ (a|b|any|#\d in line, for 2) ", text.get()) == [
        "a",
        "b",
        "any",
        "#1 in line, for 2",
        "#2 in line, for 2",
    ]
    assert "4.json cannot be read, so no card is given" in text.get()
    assert [(fact["readable"], fact["cards"], fact["waits_for"]) for fact in facts(line)] == [
        (True, ["a", "b"], 0),
        (True, [], 2),
        (True, [], 2),
        (False, [], 0),
    ]


def test_leases_can_be_watched(tmp_path, monkeypatch):
    from rich.console import Console

    from colonnade.show import leases

    watch = [COMMAND, "leases", "--watch", "--json", "--leases", str(tmp_path)]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout.readline() == "[]\n"
        shown.send_signal(signal.SIGINT)
        assert shown.communicate(timeout=10)[0] == ""
        assert shown.returncode == 0

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(leases.time, "sleep", interrupt)
    console = Console(width=100)
    with console.capture() as text:
        leases.show(console, tmp_path, as_json=False, watch=True)
    assert "No card is leased" in text.get()
