"""Takes trials of a study, ends them, and gets back those of a sweep that died: who owns a trial when.

    WAITING ──take──▶ RUNNING, of one owner ──end──▶ COMPLETE, PRUNED or FAIL
       ▲                    │
       └────give back───────┘    by its owner: cut off, or to be tried again
                                 by any sweep of this folder, once its owner is dead

- A trial is created waiting, with its owner's name in it, so it has one from its first moment. Only the owner
  changes a running trial. An owner that runs none of that name, because it died or lost an answer in between,
  is found out (`tidy`).
- Sweeps in one folder take and give back under a mutex. Whether an owner is dead, the kernel says (owner.py).
- Sweeps of several machines share only the storage. There, taking a waiting trial and ending a running one
  are atomic: who comes second is told so. An owner on another machine whose heartbeat stands still for
  `SILENT` seconds, on our clock, has its running trials ended as failed; who ends one adds another of the
  same parameters, where retries are left. Should the owner come back, its result for that trial is not taken.
- A trial keeps number, parameters and folder when it is taken again, so it is the same trial until it ends.

Everything here is called from one thread, and can be called again if an answer was lost.
"""

import contextlib
import json
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from colonnade.sweeps import owner as owning
from colonnade.sweeps.board import BestTrial, StudyState
from colonnade.sweeps.owner import SweepOwner
from colonnade.sweeps.search import Search
from colonnade.sweeps.slots.ending import CUT, Ending
from colonnade.sweeps.trial_folder import TrialFolder

OURS = "colonnade"  # the user attribute of a trial that says whose it is
BEAT = "colonnade:beat:"  # and the owner's name: the attribute of a study that counts up while that one lives
GRID = "colonnade:grid"  # the attribute of a study that says how much of its grid is written
SILENT = 90.0  # seconds without a heartbeat after which a sweep on another machine is taken for dead
GRID_WAIT = 60.0  # seconds in which another machine may write the grid
STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


@dataclass(frozen=True)
class Taken:
    """A trial that this sweep owns and is to run."""

    trial: optuna.Trial  # for the thread of the storage only: it reads from there
    sampler: optuna.samplers.BaseSampler
    folder: TrialFolder
    number: int
    params: dict[str, Any]  # those that are known already
    start: datetime
    failures: int  # of earlier attempts


class TrialBook:
    """The trials of one study, for one sweep."""

    def __init__(
        self,
        study: optuna.Study,
        storage: BaseStorage,
        folder: Path,
        owner: SweepOwner,
        search: Search,
        *,
        retries: int = 0,
        shared: bool = False,
    ) -> None:
        self.study = study
        self._storage = storage
        self._study_id = storage.get_study_id_from_name(study.study_name)
        self._folder = folder
        self._owner = owner
        self._search = search
        self._sampler = search.sampler(0)
        self._retries = retries
        self._shared = shared  # with other machines, which see the storage and not the folder
        self._running: dict[int, Taken] = {}
        self._strays: set[int] = set()  # ours in the storage, and not running, when last seen
        self._beats: dict[str, tuple[object, float]] = {}
        self._beat = 0

    def prepare(self) -> list[str]:
        """Before the first trial: get back what dead sweeps left, and write the grid, if there is one."""
        said = self.tidy()
        if self._search.grid is not None:
            self._write_grid(self._search.grid)
        return said

    def take(self, cards: str, host: str) -> Taken | None:
        """A trial to run on these cards; None if there is none to begin now."""
        mine = {"owner": self._owner.name, "cards": cards, "host": host}
        with owning.alone_with(self._folder):
            number = self._mark_next(mine)
            if number is None:
                return None
            TrialFolder(self.folder_of(number)).make()  # before it runs: the disk may be full
            # Without a seed one for all, for it remembers some of what it has read.
            sampler = self._sampler if self._search.seed is None else self._search.sampler(number)
            self.study.sampler = sampler
            trial = self.study.ask(self._search.space)
            ours = {**trial.user_attrs.get(OURS, {}), **mine}
            if ours != trial.user_attrs.get(OURS):  # another machine was quicker, and left us the next one
                trial.set_user_attr(OURS, ours)
            folder = TrialFolder(self.folder_of(trial.number))
            folder.make()
            failures, start = ours.get("failures", 0), trial.datetime_start or datetime.now()
            taken = Taken(trial, sampler, folder, trial.number, trial.params, start, failures)
            self._running[taken.number] = taken
        twin = self._twin(taken.number, taken.params)
        if twin is None:
            return taken
        self.end(taken, Ending("failed", reason=f"the same combination as trial {twin}"))
        return self.take(cards, host)

    def _mark_next(self, mine: Mapping[str, Any]) -> int | None:
        """Write our name into the waiting trial that is next, before it is taken; add one if there is none.

        So a trial that runs has an owner that can be found out to be dead, whenever we die.
        """
        waiting = self._trials(TrialState.WAITING)
        if waiting:
            ours = {**_attributes(waiting[0]), **mine}
            self._storage.set_trial_user_attr(self._id(waiting[0].number), OURS, ours)
            return int(waiting[0].number)
        count = len(self.study.get_trials(deepcopy=False))
        if self._search.grid is not None or count >= self._search.trials:
            return None
        self._create({}, {}, mine)
        return count

    def call(self, taken: Taken, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a trial, such as `suggest_float`."""
        self.study.sampler = taken.sampler
        if method == "report":
            return self._report(taken, *args)
        answer = getattr(taken.trial, method)
        if method == "distributions":
            return {name: distribution_to_json(kind) for name, kind in answer.items()}
        return answer(*args, **kwargs) if callable(answer) else answer

    def _report(self, taken: Taken, value: float, step: int) -> None:
        with warnings.catch_warnings():  # a trial that is run again reports again what it did before
            warnings.simplefilter("ignore")
            taken.trial.report(value, step)
        with contextlib.suppress(OSError):  # the storage has it; a full disk need not stop the training
            taken.folder.reported(step, value)

    def folder_of(self, number: int) -> Path:
        return self._folder / "trials" / f"{number:04d}"

    def left(self) -> int:
        """How many trials there are to begin now."""
        trials = self.study.get_trials(deepcopy=False)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        new = 0 if self._search.grid is not None else max(0, self._search.trials - len(trials))
        return waiting + new

    def state(self) -> StudyState:
        """How many trials are in which state, and the best of them."""
        trials = self.study.get_trials(deepcopy=False)
        kinds = {state: kind for kind, state in STATES.items()}
        counts = Counter(kinds.get(trial.state, trial.state.name.lower()) for trial in trials)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if not complete:
            return StudyState(counts, None)
        maximize = self.study.direction == optuna.study.StudyDirection.MAXIMIZE
        best = (max if maximize else min)(complete, key=lambda trial: trial.values[0])
        return StudyState(counts, BestTrial(best.number, best.values[0], best.params))

    def may_come_back(self) -> bool:
        """Whether a trial that runs will be run again: its owner here is gone, or we do not know of it."""
        owners = {t.number: _attributes(t).get("owner") for t in self._trials(TrialState.RUNNING)}
        if any(name == self._owner.name and number not in self._running for number, name in owners.items()):
            return True
        others = {str(name) for name in owners.values() if name not in (None, self._owner.name)}
        return any(owning.state(self._folder, name) in ("dying", "dead") for name in others)

    def end(self, taken: Taken, ending: Ending) -> Ending:
        """Write down how a trial ended; returns what became of it: a failure may have become a cut."""
        number = taken.number
        again = ending.kind == "failed" and ending.again and taken.failures < self._retries
        try:
            if again:
                counted = {**_attributes(self._frozen(number)), "failures": taken.failures + 1}
                taken.trial.set_user_attr(OURS, counted)
                ending = Ending(CUT, reason=ending.reason)
            if ending.kind == CUT:
                self._give_back(number, self._owner.name)
            else:
                self._finish(taken, ending)
        except UpdateFinishedTrialError:
            # This is a second call, or we were silent for so long that another machine has ended it.
            state = self._frozen(number).state
            if state != STATES.get(ending.kind):
                kind = next(kind for kind, known in STATES.items() if known == state)
                ending = Ending(kind, reason="ended by another machine, which saw no sign of this one")
        self._running.pop(number, None)
        return ending

    def tidy(self) -> list[str]:
        """Get back the trials of dead sweeps; says what was done. To be called now and then."""
        said: list[str] = []
        if self._shared:
            self._beat += 1
            self.study.set_user_attr(f"{BEAT}{self._owner.name}", self._beat)
        with owning.alone_with(self._folder):
            owned: dict[str, list[int]] = {}
            for trial in self._trials(TrialState.RUNNING):
                name = _attributes(trial).get("owner")
                if name is not None:  # else it is somebody's who uses Optuna alone
                    owned.setdefault(name, []).append(trial.number)
            said += self._stray(set(owned.pop(self._owner.name, ())) - self._running.keys())
            for name, numbers in owned.items():
                how = owning.state(self._folder, name)
                if how == "dead" or (how == "remote" and not self._shared):
                    for number in numbers:
                        self._give_back(number, name)
                    said.append(f"{_trials_text(numbers)} of a sweep that died: to be run again")
                elif how == "remote" and self._is_silent(name):
                    said += [self._bury(number) for number in numbers]
            for name in owning.known(self._folder):
                if name != self._owner.name and owning.state(self._folder, name) == "dead":
                    owning.forget(self._folder, name)
        return said

    def _stray(self, strays: set[int]) -> list[str]:
        """Ours, and not running, twice in a row: an answer was lost when it was taken."""
        gone = strays & self._strays
        for number in gone:
            self._give_back(number, self._owner.name)
        self._strays = strays - gone
        return [f"{_trials_text(sorted(gone))} taken and never begun: to be run again"] if gone else []

    def _is_silent(self, name: str) -> bool:
        beat, now = self.study.user_attrs.get(f"{BEAT}{name}"), time.monotonic()
        known, since = self._beats.setdefault(name, (beat, now))
        if known != beat:
            self._beats[name] = beat, now
            return False
        return now - since > SILENT

    def _bury(self, number: int) -> str:
        """End a trial of a machine that is gone; the first to do so may add another like it."""
        dead = self._frozen(number)
        ours = _attributes(dead)
        try:
            self._storage.set_trial_state_values(self._id(number), TrialState.FAIL)
        except UpdateFinishedTrialError:
            return f"trial {number} ended after all"
        failures = ours.get("failures", 0) + 1
        if failures > self._retries:
            return f"trial {number} failed with its machine, {ours.get('host')}"
        again = {"owner": self._owner.name, "failures": failures, "replaces": number}
        self._create(dead.params, dead.distributions, again)
        return f"trial {number} failed with its machine, {ours.get('host')}; added another like it"

    def _create(
        self, params: Mapping[str, Any], kinds: Mapping[str, BaseDistribution], ours: Mapping[str, Any]
    ) -> None:
        self.study.add_trial(
            create_trial(
                state=TrialState.WAITING,
                params=dict(params),
                distributions=dict(kinds),
                user_attrs={OURS: dict(ours)},
            )
        )

    def _write_grid(self, grid: list[dict[str, Any]]) -> None:
        """Every combination is one trial, all of them waiting; those that are there are not written again."""
        deadline = time.monotonic() + GRID_WAIT
        while self._shared and self._others() and time.monotonic() < deadline:
            if self.study.user_attrs.get(GRID, 0) >= len(grid):
                break
            time.sleep(0.5)
        with owning.alone_with(self._folder):
            if self.study.user_attrs.get(GRID, 0) >= len(grid):
                return
            there = {_key(trial.params) for trial in self.study.get_trials(deepcopy=False)}
            for combination in grid:
                if _key(combination) not in there:
                    self._create(combination, self._search.kinds, {"owner": self._owner.name})
            self.study.set_user_attr(GRID, len(grid))

    def _others(self) -> bool:
        """Whether other sweeps were here before this one."""
        beats = (name for name in self.study.user_attrs if name.startswith(BEAT))
        return any(name != f"{BEAT}{self._owner.name}" for name in beats)

    def _twin(self, number: int, params: Mapping[str, Any]) -> int | None:
        """An earlier trial of the same combination, where two machines wrote the grid at the same moment."""
        if self._search.grid is None or not self._shared:
            return None
        for trial in self.study.get_trials(deepcopy=False)[:number]:
            if trial.params == params and "replaces" not in _attributes(self._frozen(number)):
                return int(trial.number)
        return None

    def _finish(self, taken: Taken, ending: Ending) -> None:
        number = taken.number
        if self._frozen(number).state.is_finished():
            raise UpdateFinishedTrialError
        if ending.kind == "complete":
            self.study.tell(number, ending.value)
            return
        if ending.reason:
            taken.trial.set_user_attr("reason", ending.reason)
        self.study.tell(number, state=STATES[ending.kind])

    def _give_back(self, number: int, owner: str) -> None:
        """Let a trial of this owner wait; if it was given back before, it may run under another by now."""
        trial = self._frozen(number)
        if trial.state == TrialState.RUNNING and _attributes(trial).get("owner") == owner:
            self._storage.set_trial_state_values(self._id(number), TrialState.WAITING)

    def _trials(self, state: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(state,))

    def _frozen(self, number: int) -> FrozenTrial:
        return self._storage.get_trial(self._id(number))

    def _id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)


def _attributes(trial: FrozenTrial) -> dict[str, Any]:
    ours = trial.user_attrs.get(OURS, {})
    return ours if isinstance(ours, dict) else {}


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)


def _trials_text(numbers: list[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)))
    return f"trial {listed}" if len(numbers) == 1 else f"trials {listed}"
