"""Keeps the outcome of every trial in a file, so that an experiment that was stopped goes on."""

import json
from collections.abc import Iterator
from pathlib import Path

from colonnade.errors import InvalidArgument, Problem
from colonnade.experiment.design import Design, Trial
from colonnade.experiment.images import load
from colonnade.experiment.outcome import TrialOutcome, run

FILE = "outcomes.jsonl"
EDITION = 1  # to be raised when the same design would have other outcomes


class Notebook:
    """A file in a folder: the design in the first line, then an outcome per line."""

    def __init__(self, folder: Path, design: Design) -> None:
        self.design, self._file = design, folder / FILE
        self.outcomes: dict[Trial, TrialOutcome] = {}
        heading = json.dumps({"edition": EDITION, "design": json.loads(design.to_json())})
        text = self._file.read_text() if self._file.exists() else ""
        # A line without its end was being written when the program was stopped.
        whole, _, rest = text.rpartition("\n")
        lines = whole.splitlines() or [heading]
        self._check(folder, lines[0], heading)
        for line in lines[1:]:
            self._note(TrialOutcome.from_json(line))
        if rest or not whole:
            self._replace("".join(f"{line}\n" for line in lines))

    def _replace(self, text: str) -> None:
        """All of the file at once, so that being stopped here loses nothing."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(text)
        new.replace(self._file)

    def _check(self, folder: Path, first_line: str, heading: str) -> None:
        if first_line != heading:
            rule = "holds the outcomes of another design, or of another edition"
            fix = "Name another folder, or delete this one"
            raise InvalidArgument("experiment", [Problem("output", str(folder), rule, fix)])

    def _note(self, outcome: TrialOutcome) -> None:
        self.outcomes[outcome.trial] = outcome

    @property
    def missing(self) -> list[Trial]:
        """Trials that have to be run."""
        wanted = dict.fromkeys(trial.stand_in for trial in self.design.trials())
        return [trial for trial in wanted if trial not in self.outcomes]

    def fill(self) -> Iterator[Trial]:
        """Run what is missing, one trial after the other; each is kept before the next begins."""
        images = load(self.design.data)
        for trial in self.missing:
            outcome = run(trial, self.design, images)
            with self._file.open("a") as file:
                file.write(f"{outcome.to_json()}\n")
            self._note(outcome)
            yield trial
