import json
import sys

from colonnade.fleet.heard import HeardSignals
from colonnade.fleet.printer import Printer
from colonnade.fleet.team import Team
from colonnade.fleet.worker import Place

TALKS = r"""
import json, sys
print("before", flush=True)
request = json.loads(input())
print('\0colonnade {"hello": 1}', flush=True)
print(request["word"], file=sys.stderr, flush=True)
print("half a line", end="")
"""


def place(name, program, **request):
    return Place(name, "127.0.0.1", [sys.executable, "-c", program], request)


def test_what_it_says_is_kept_and_what_the_program_prints_is_shown(capfd):
    with (
        Printer() as printer,
        HeardSignals() as heard,
        Team([place("a", TALKS, word="é"), place("long", "")], heard, printer) as team,
    ):
        first, _ = team.workers
        assert team.wait(lambda: all(worker.over for worker in team.workers), 20)
        assert first.said == {"hello": 1}
        assert first.lost_words == "before"
        assert first.lost  # it never said how it ended
        assert first.process.returncode == 0
    out, errors = capfd.readouterr()
    assert out == "a    | before\na    | half a line\n"
    assert errors == "a    | é\n"


def test_a_worker_that_has_ended_can_be_spoken_to():
    with Printer() as printer, HeardSignals() as heard, Team([place("a", "")], heard, printer) as team:
        (worker,) = team.workers
        team.wait(lambda: worker.over, 20)
        worker.tell({"signal": 15})
        worker.tell()
        worker.hang_up()
        worker.tell({"signal": 15})
        assert worker.over


def test_its_input_is_one_line_per_message(capfd):
    program = "import sys; print(sys.stdin.read())"
    with (
        Printer() as printer,
        HeardSignals() as heard,
        Team([place("a", program, text="x\ny")], heard, printer) as team,
    ):
        (worker,) = team.workers
        worker.tell({"signal": 2})
        worker.tell()
        worker.hang_up()
        team.wait(lambda: worker.over, 20)
    lines = [line.removeprefix("a | ") for line in capfd.readouterr().out.splitlines()]
    assert [json.loads(line) for line in lines if line] == [{"text": "x\ny"}, {"signal": 2}]
