"""The machines of a training keep in touch: they exchange what all must agree on, and notice who is gone.

All are connected to the first one. Everybody sends a beat twice a second; who is not heard for some seconds,
or whose connection ends without a goodbye, is lost. Steps cannot go on without it, and a new ring needs a new
start. So every other machine ends at once, with the exit code that asks to be started again; nothing is
saved on the way. A beat says what its machine is at (see `whereabouts`), so that machines that wait for each
other for ever are noticed too.
"""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from colonnade.describe.clusters.cluster import Cluster
from colonnade.errors import RESUMABLE, InvalidArgument, Problem
from colonnade.hardware.clusters.rendezvous import MessageSocket, Said
from colonnade.hardware.clusters.whereabouts import DATA, Doing, Progress, Whereabouts, deadlock, told

BEAT = 0.5
# Seconds by which this machine's own beat may be late. If it is later, Python was held up here, or the whole
# machine stood still: what the others sent meanwhile has not been read yet.
LATE = 1.0
# Seconds without a beat after which a machine is lost: in a fit once steps are known, and at all other times,
# when what a program does may hold Python up. No program holds up what its system answers by itself: a
# machine from which not even that comes is cut off, and lost after the shorter time always.
IN_STEPS, OTHERWISE = 5.0, 15.0
# After a machine has failed, the others fail by themselves if it is for the same reason.
GRACE = 3.0
# For how long the first machine waits at its end for the others, which may look at results.
FAREWELL = 30.0


def end_process(words: str, code: int) -> None:
    """End at once: the main thread may be inside TensorFlow, where nothing reaches it."""
    print(f"colonnade: {words}", file=sys.stderr, flush=True)
    os._exit(code)


class Meeting:
    """What the machines of a cluster say to each other.

    Args:
        cluster: who they are.
        links: by rank, the connections of this machine: of the first to all, of all others to the first.
        leave: ends this process, with words and an exit code.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        cluster: Cluster,
        links: Mapping[int, MessageSocket],
        leave: Callable[[str, int], None] = end_process,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._cluster, self._links, self._leave = cluster, dict(links), leave
        self.silence, self.fitting = OTHERWISE, False  # who is silent for how long is lost; whether in a fit
        self._lock = threading.RLock()
        self._sending = {rank: threading.Lock() for rank in links}
        self._heard = dict.fromkeys(links, clock())
        self._looked = clock()
        self._gone: dict[int, tuple[str | None, float]] = {}  # who said goodbye: why, and when
        self._count = 0
        self._here = Whereabouts(clock)
        self._doing = [Doing()] * cluster.size  # what each is at; the first machine knows it of all
        self._said: dict[int, dict[int, Said]] = {}  # by the number of the exchange and by rank
        self._calls = 0
        # By the number of a call and by rank, who is back from it.
        self._back: dict[int, dict[int, Said]] = {}
        self._deadlines: dict[int, float] = {}  # of calls
        self._answers: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._leaving = False
        self._closed, self._understood = threading.Event(), threading.Event()
        for rank in links:
            threading.Thread(target=self._hear, args=(rank,), name=f"machine-{rank}", daemon=True).start()
        threading.Thread(target=self._beat, name="machines-beat", daemon=True).start()

    def exchange(self, topic: str, value: Any) -> list[Any]:
        """Give all machines a value, and take those of all, by rank. All must call it, in the same order.

        Args:
            topic: what it is about; machines that speak of different things are told.
            value: anything that JSON has a word for.
        """
        with self._lock:
            number, self._count = self._count, self._count + 1
        self._here.begin_exchange(topic)
        self._to_first({"n": number, "topic": topic, "value": value})
        answer = self._answers.get()
        self._here.end_exchange()
        return answer

    @contextlib.contextmanager
    def call(self, progress: Progress, patience: float) -> Iterator[None]:
        """Around a call of steps that all machines make together.

        Args:
            progress: how far it is; another thread asks, now and then.
            patience: seconds for which it may stand still.
        """
        self._here.begin_call(progress, patience)
        try:
            yield
        finally:
            self._here.end_call()

    def back(self, *, patience: float, early: str | None = None) -> None:
        """Tell that this machine has made the steps that all make together, without waiting for anybody.

        Args:
            patience: seconds within which all others must be back too.
            early: why it is back sooner than asked for, if it is: what is said if the others are not back.
        """
        with self._lock:
            call, self._calls = self._calls, self._calls + 1
        self._to_first({"back": call, "patience": patience, "early": early})

    def _to_first(self, message: Said) -> None:
        if self._cluster.rank == 0:
            self._note(0, message)
        else:
            self._tell(0, message)

    def _note(self, rank: int, message: Said) -> None:
        """On the first machine: what one of them says."""
        if "beat" in message:
            self._doing[rank] = told(message["beat"])
        elif "back" in message:
            self._note_back(rank, message)
        elif "n" in message:
            self._take(rank, message)

    def _note_back(self, rank: int, message: Said) -> None:
        call = int(message["back"])
        with self._lock:
            back = self._back.setdefault(call, {})
            back[rank] = message
            deadline = self._clock() + float(message["patience"])
            self._deadlines[call] = max(deadline, self._deadlines.get(call, 0.0))
            if len(back) == self._cluster.size:
                del self._back[call], self._deadlines[call]

    def agree(self, where: str, facts: Mapping[str, Any], fix: str) -> None:
        """See that all machines have the same facts; raise on every machine what differs, and where."""
        everyone = self.exchange(where, {name: str(value) for name, value in facts.items()})
        differing = [
            Problem(name, value, f"is so on {who}, and {other} on {others}", fix)
            for name, value, who, other, others in self._differences(everyone)
        ]
        if differing:
            raise InvalidArgument(where, differing)

    def _differences(self, everyone: Sequence[Mapping[str, str]]) -> list[tuple[str, str, str, str, str]]:
        """What some machines have otherwise than most: (name, value, where, value of most, where)."""
        names, rows = self._cluster.names, []
        for fact in dict.fromkeys(name for facts in everyone for name in facts):
            values = [facts.get(fact, "nothing") for facts in everyone]
            most = max(dict.fromkeys(values), key=values.count)  # of as many, that of the first machine
            others = ", ".join(n for n, v in zip(names, values, strict=True) if v == most)
            for value in dict.fromkeys(v for v in values if v != most):
                who = ", ".join(n for n, v in zip(names, values, strict=True) if v == value)
                rows.append((fact, value, who, most, others))
        return rows

    def close(self, failed: str | None = None) -> None:
        """Say goodbye; the first machine waits for the others, which may still speak to each other."""
        if self._closed.is_set():
            return
        self._leaving = True
        for rank in self._links:  # also the first one that has said it: it waits for the others
            self._tell(rank, {"bye": failed, "from": self._cluster.rank})
        if self._cluster.rank == 0:
            until = time.monotonic() + (FAREWELL if failed is None else GRACE)
            while time.monotonic() < until and len(self._gone) < len(self._links):
                time.sleep(0.02)
        else:
            # To close at once would take back what the first one has not read yet.
            self._understood.wait(GRACE)
        self._closed.set()
        for link in self._links.values():
            link.close()

    def lost(self, words: str) -> None:
        """Something that all machines do together came to nothing: end, unless another says why before."""
        with self._lock:
            gone = dict(self._gone)
        for rank, (why, _) in gone.items():
            self._end_after(rank, why)
        self._end(f"{words}. To go on from the last save, start all machines again.", RESUMABLE)

    def _hear(self, rank: int) -> None:
        link = self._links[rank]
        while (message := link.receive(partial(self._note_life, rank))) is not None:
            if "bye" in message:
                self._note_goodbye(message)
            elif "understood" in message:
                self._understood.set()
            elif "end" in message:
                self._leave(str(message["end"]), int(message["code"]))
            elif "all" in message:
                self._answers.put(message["all"])
            else:
                self._note(rank, message)
        self._understood.set()
        if not self._leaving and rank not in self._gone:
            self._lose(rank, "has ended")

    def _note_life(self, rank: int) -> None:
        self._heard[rank] = self._clock()

    def _note_goodbye(self, message: Said) -> None:
        """A machine has come to the end of its program. The first one hands it on."""
        rank, why = int(message["from"]), message["bye"]
        if self._cluster.rank == 0:
            self._tell(rank, {"understood": 1})
            for other in self._links:
                if other != rank and other not in self._gone:
                    self._tell(other, message)
        with self._lock:
            self._gone[rank] = why, self._clock()

    def _look_at_the_gone(self) -> None:
        """End, if this machine waits for one that has gone, or if one failed and this one goes on."""
        with self._lock:
            gone, topic = dict(self._gone), self._here.topic
        for rank, (why, when) in gone.items():
            name, since = self._cluster.names[rank], self._clock() - when
            if since > GRACE:
                self._end_after(rank, why)
            if since > GRACE and why is None and topic is not None:
                self._end(f"{name} has ended its program, and {topic} needs it", RESUMABLE)

    def _end_after(self, rank: int, why: str | None) -> None:
        """End, if a machine that said goodbye had failed.

        Not to be started again: it would fail again, and a scheduler has one exit code for all.
        """
        if why is not None:
            self._end(f"{self._cluster.names[rank]} failed: {why}", 1)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            self._look()

    def _look(self) -> None:
        """Say that this machine lives, and see who does not."""
        now, before = self._clock(), self._looked
        self._looked = now
        late = now - before - BEAT
        if late > LATE:
            self._forgive(late)
        doing = self._here.look()
        for rank in self._links:
            # Who is being told something long hears that, and others must not wait for their beats meanwhile.
            if rank not in self._gone and not self._sending[rank].locked():
                self._tell(rank, {"beat": asdict(doing)})
        for rank, heard in self._heard.items():
            if rank not in self._gone and now - heard > self._bearable(rank):
                self._lose(rank, f"was not heard for {now - heard:.0f} s")
        self._look_at_the_gone()
        if self._cluster.rank == 0:
            self._doing[0] = doing
            self._look_at_deadlines(now)
            self._look_at_calls()

    def _bearable(self, rank: int) -> float:
        """For how many seconds a machine may be silent."""
        cut_off = self.silence == OTHERWISE and self._links[rank].unanswered > IN_STEPS
        return IN_STEPS if cut_off else self.silence

    def _forgive(self, seconds: float) -> None:
        """This machine stood still: nobody's silence meanwhile counts, nor that nobody was back."""
        now = self._clock()
        self._heard.update(dict.fromkeys(self._heard, now))
        self._here.forgive(seconds)
        with self._lock:
            self._deadlines = {call: deadline + seconds for call, deadline in self._deadlines.items()}

    def _look_at_calls(self) -> None:
        verdict = deadlock(self._doing, self._cluster.names)
        if verdict is not None:
            self._end_all(*verdict)

    def _look_at_deadlines(self, now: float) -> None:
        with self._lock:
            late = [call for call, deadline in self._deadlines.items() if now > deadline]
            if not late:
                return
            said, deadline = dict(self._back[late[0]]), self._deadlines[late[0]]
        absent = [rank for rank in range(self._cluster.size) if rank not in said]
        if now < deadline + DATA and all(self._doing[rank].waits_for_data for rank in absent):
            return  # they made the steps, and wait for the batch after them
        missing = [self._cluster.names[rank] for rank in absent]
        early = {self._cluster.names[rank]: m["early"] for rank, m in said.items() if m["early"]}
        if early:
            who, why = next(iter(early.items()))
            words = f"{who} {why}, and {', '.join(missing)} trains on: the machines do not have the same data"
            self._end_all(words, 1)
        else:
            self._end_all(f"{', '.join(missing)} hangs: the others made the steps that it does not end")

    def _take(self, rank: int, message: Said) -> None:
        """On the first machine: a value for an exchange; the last one of them answers all."""
        number = int(message["n"])
        with self._lock:
            said = self._said.setdefault(number, {})
            said[rank] = message
            topics = {one["topic"]: who for who, one in said.items()}
            complete = len(said) == self._cluster.size
            if complete:
                del self._said[number]
        if len(topics) > 1:
            places = ", ".join(f"{self._cluster.names[who]} is at {topic}" for topic, who in topics.items())
            self._end_all(f"the machines do not run the same program: {places}", 1)
        if complete:
            values = [said[who]["value"] for who in range(self._cluster.size)]
            for other in self._links:
                self._tell(other, {"all": values})
            self._answers.put(values)

    def _lose(self, rank: int, what: str) -> None:
        if not self._leaving:
            self._end_all(f"{self._cluster.names[rank]} {what}", RESUMABLE)

    def _end_all(self, words: str, code: int = RESUMABLE) -> None:
        """End every machine that can be told to."""
        hint = " To go on from the last save, start all machines again." if code == RESUMABLE else ""
        for other in self._links:
            self._tell(other, {"end": f"{words}.{hint}", "code": code})
        self._end(f"{words}.{hint}", code)

    def _end(self, words: str, code: int) -> None:
        self._closed.set()
        self._leave(words, code)

    def _tell(self, rank: int, message: Said) -> None:
        """Who cannot be told is lost, which is noticed where he is listened to."""
        with contextlib.suppress(OSError), self._sending[rank]:
            self._links[rank].send(message)
