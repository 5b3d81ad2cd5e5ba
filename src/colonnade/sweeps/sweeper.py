"""Runs the trials of a study on the cards that come free: the whole of a sweep, from top to bottom.

One thread does all but talk to the storage, which may be slow or away; a second one does that. A slot is a
coroutine: it leases cards, takes a trial, starts a program for it, waits for its end, writes that down, and
takes the next trial. Where somebody else waits for the cards of a slot, it gives them back after a trial and
gets in line again; at most one slot of a sweep is in line for long.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from colonnade.errors import ColonnadeError
from colonnade.fleet.lease import claims
from colonnade.sweeps.board import Board, RunningTrial, Watcher
from colonnade.sweeps.owner import SweepOwner
from colonnade.sweeps.slots.attempt import Runner
from colonnade.sweeps.slots.ending import CUT, Ending
from colonnade.sweeps.slots.slot import Slot, SlotLease
from colonnade.sweeps.storage import Persistent
from colonnade.sweeps.trial_book import Taken, TrialBook

TIDY = 5.0  # seconds between two looks for what dead sweeps left
TICK = 0.25  # seconds between two looks at what there is to show and to begin
STILLBORN = 20  # keepers in a row that may end before they have cards
LOOK = 1.0  # seconds between two looks for who else waits for cards
GRACE = 30.0  # seconds in which a trial may save and end when the sweep is to end

T = TypeVar("T")


class Sweeper:
    """One sweep. `stop` ends it politely, and may be called from a signal handler of the loop."""

    def __init__(
        self,
        book: TrialBook,
        board: Board,
        owner: SweepOwner,
        share: SlotLease,
        most: int,
        runner: Callable[["Sweeper", Slot], Runner],
        watcher: Watcher,
    ) -> None:
        self._book, self._board, self._owner, self._watcher = book, board, owner, watcher
        self._share, self._most, self._runner = share, most, runner
        self._host = socket.gethostname()
        self._name = ("colonnade", "sweep", board.study, owner.name)  # of its claims among all leases
        self._wanted: set[str] = set()  # the cards for which others wait
        self._looked = 0.0
        self._stillborn = 0  # slots in a row that ended before they had cards
        self._slots: set[Slot] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="storage")
        self._persistent = Persistent(watcher.noted)
        self.stopped_by = ""  # why it ends before its time

    async def run(self, timeout: float | None = None) -> None:
        """Run trials until there are none left, the time is over, or somebody stops it."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.call_later(timeout, self.stop, "the time given is over")
        try:
            for text in await self.ask(self._book.prepare):
                self._watcher.noted(text)
            self._board.take(await self.ask(self._book.state))
            house = asyncio.ensure_future(self._keep_house())
            try:
                await self._run_slots(house)
            finally:
                house.cancel()
            self._board.take(await self.ask(self._book.state))
            self._watcher.tick(self._board)
        finally:
            if deadline is not None:
                deadline.cancel()
            self._thread.shutdown(wait=True)

    def stop(self, why: str) -> None:
        """Ask the trials to save and to end; called again, or after a while, end them."""
        if self.stopped_by:
            self._persistent.giving_up.set()
            self._kill()
            return
        self.stopped_by = why
        self._watcher.noted(f"{why}: asking {len(self._board.running)} running trials to save and to end")
        for slot in self._slots:
            slot.terminate()
        asyncio.get_running_loop().call_later(GRACE, self._kill)

    async def ask(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call something that uses the storage, in the thread that does."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: self._persistent.call(function, *args, **kwargs)
        )

    async def call(self, taken: Taken, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a trial."""
        return await self.ask(self._book.call, taken, method, *args, **kwargs)

    def _kill(self) -> None:
        for slot in self._slots:
            slot.kill()

    async def _run_slots(self, house: "asyncio.Future[None]") -> None:
        tasks: set[asyncio.Future[None]] = set()
        while True:
            if not self.stopped_by:
                tasks |= {
                    asyncio.ensure_future(self._slot()) for _ in range(await self._to_begin(len(tasks)))
                }
            if not tasks and (self.stopped_by or not await self.ask(self._book.may_come_back)):
                return
            done, _ = await asyncio.wait({*tasks, house}, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                try:
                    task.result()
                except Exception:
                    await self._abandon(tasks)
                    raise
            tasks -= done
            self._board.slots = sum(bool(slot.cards) for slot in self._slots)
            self._leave_the_line()
            self._watcher.tick(self._board)

    async def _to_begin(self, slots: int) -> int:
        """How many more slots there is work for; none while one of ours waits in line."""
        if slots >= self._most or self._board.in_line:
            return 0
        left = await self.ask(self._book.left)
        idle = slots - len(self._board.running)  # they are about to take a trial themselves
        return max(0, min(left - idle, self._most - slots))

    def _leave_the_line(self) -> None:
        """One slot in line is enough: others would only keep other people waiting."""
        waiting = sorted(
            (slot.place, id(slot), slot) for slot in self._slots if slot.place and not slot.cards
        )
        for _, _, slot in waiting[1:]:
            slot.dismissed = True
            slot.terminate()
        place = waiting[0][0] if waiting else 0
        if place and not self._board.in_line and not self._board.running:
            self._watcher.noted(f"waiting for cards, number {place} in line")
        self._board.in_line = place

    async def _abandon(self, tasks: "set[asyncio.Future[None]]") -> None:
        """The storage is gone for good, or there are no leases to be had: end everything at once."""
        self._persistent.giving_up.set()
        self._kill()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _slot(self) -> None:
        slot = Slot(self._share, self._name, self._owner.descriptor)
        self._slots.add(slot)
        try:
            if not await slot.lease():
                self._count_stillborn(slot)
                return
            self._stillborn = 0
            runner = self._runner(self, slot)
            while not (self.stopped_by or slot.over):
                taken = await self.ask(self._book.take, ", ".join(slot.cards), self._host)
                if taken is None:
                    break
                await self._trial(slot, runner, taken)
                if self._is_wanted(slot):
                    break
            await runner.close()
        finally:
            await slot.close()
            self._slots.discard(slot)

    def _count_stillborn(self, slot: Slot) -> None:
        """A keeper may be killed before it has cards, but not again and again."""
        self._stillborn += not (slot.dismissed or self.stopped_by)
        if self._stillborn > STILLBORN:
            raise ColonnadeError(
                f"{self._stillborn} processes that were to keep cards ended one after another before they "
                "had any. What they printed is above."
            )

    def _is_wanted(self, slot: Slot) -> bool:
        """Whether somebody who is no slot of ours waits for cards such as these; looks once a second."""
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            waiting = [claim for claim in claims(self._share.leases) if not claim.slots]
            self._wanted = {card for claim in waiting if claim.command != self._name for card in claim.among}
        if self._wanted.isdisjoint(slot.cards):
            return False
        self._wanted = set()  # one card may be enough for him: the next slot looks again
        self._looked = 0.0
        return True

    async def _trial(self, slot: Slot, runner: Runner, taken: Taken) -> None:
        """One attempt at a trial; it is written down as ended, or as to be tried again."""
        before = taken.folder.attempts()
        shown = RunningTrial(taken.number, slot.cards, dict(taken.params), len(before) + 1)
        begun = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts: dict[str, Any] = {"begun": begun, "host": self._host, "cards": slot.cards}
        self._board.running[taken.number] = shown
        self._watcher.begun(shown)
        self._note(taken, [*before, facts], shown.params)
        ending = Ending(CUT, reason=self.stopped_by)
        if not self.stopped_by:
            try:
                ending = await runner.attempt(taken, shown)
            except OSError as error:  # its folder is gone, or the machine has no more processes
                ending = Ending("failed", reason=f"it could not be run: {error}", again=True)
        if self.stopped_by and (ending.kind == "failed" or not ending.final):
            ending = Ending(CUT, reason=self.stopped_by)
        ending = await self.ask(self._book.end, taken, ending)
        facts |= {"seconds": round(shown.seconds, 3), "end": ending.kind, "reason": ending.reason}
        self._board.end(shown, ending)
        self._watcher.ended(shown, ending)
        facts["exit"] = await runner.settle()
        self._note(taken, [*before, facts], shown.params)

    def _note(self, taken: Taken, attempts: list[dict[str, Any]], params: dict[str, Any]) -> None:
        try:
            taken.folder.note(attempts, params)
        except OSError as error:
            self._watcher.noted(f"trial {taken.number}: trial.json cannot be written ({error.strerror})")

    async def _keep_house(self) -> None:
        """Now and then: our heartbeat, the trials of dead sweeps, and what other machines have done."""
        while True:
            await asyncio.sleep(TIDY)
            for text in await self.ask(self._book.tidy):
                self._watcher.noted(text)
            self._board.take(await self.ask(self._book.state))
