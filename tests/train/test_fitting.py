"""The loop of a fit, with a stream and a saver that write down what they are asked for."""

import inspect
import itertools
from dataclasses import replace

import pytest

import colonnade as cn
from colonnade.describe.timeline import Timeline
from colonnade.run.checkpoint.no_saver import NEVER, NoSaver
from colonnade.run.checkpoint.saver import Saver
from colonnade.run.engine.protocols import MOST_SKIPPED, Chunk
from colonnade.run.machines.peers import Peers
from colonnade.run.record.profiling import Profiling
from colonnade.run.record.progress import Progress
from colonnade.run.record.run_log import RunLog
from colonnade.run.train.counts import Counts
from colonnade.run.train.fitting import Fitting
from colonnade.run.train.signals import Interruption


class Taken:
    """A stream of so many batches of four rows; a step takes so many seconds."""

    resting = True
    rows, idle = 4, 0  # it is its own loop

    def __init__(self, batches=10**6, seconds=0.01, idle=0, begun=0):
        self.left, self.seconds, self.idle_steps, self.begun = batches, seconds, idle, begun
        self.held, self.taken = [], []

    def hold(self, steps):
        self.held.append(steps)

    def take(self, steps):
        steps = min(steps, self.left)
        self.left -= steps
        self.taken.append(steps)
        return self.chunk(steps)

    def settle(self):
        begun, self.begun = self.begun, 0
        return self.chunk(begun)

    def chunk(self, steps):
        losses, idle = [1.0] * steps, self.idle_steps
        kind = Chunk(steps * self.seconds, steps, steps * 4, losses, {}, [1.0], 0, steps, idle=idle)
        return kind if steps else None


class EveryTen(NoSaver):
    """Asks for a save after every tenth step."""

    def __init__(self):
        self.asked = []

    def until_save(self, step):
        return 10 - step % 10

    def after(self, record, *, resting, stopped):
        self.asked.append((record.step, resting, stopped))

    def finish(self, *, stopped):
        self.asked.append("finish")


class Other:
    """A meeting with one other machine, which does the same; `during` is called while one waits for it."""

    silence = 15.0

    def __init__(self, during=lambda topic, number: None, **other):
        self._during, self._other, self.topics, self.told_back = during, other, [], []

    def exchange(self, topic, value):
        self.topics.append(topic)
        self._during(topic, self.topics.count(topic))
        return [value, self._other.get(topic.replace(" ", "_"), unhurt)(value)]

    def back(self, *, patience, early):
        self.told_back.append(early)


def unhurt(value):
    """What a machine says that is told the same, and has had no signal."""
    return [value[0], None, *value[2:]] if isinstance(value, list) else None


def fitting(
    stream,
    *,
    steps=None,
    log_every=8,
    ends=lambda record: False,
    saver=None,
    interrupted=None,
    profile=None,
    **more,
):
    shown = Progress(None, None, ["/cpu:0"], show=False)
    event = interrupted or Interruption()
    recorded = Profiling(profile, lambda ops, first: Timeline.of([]))
    return Fitting(
        counts=Counts(stream),
        stream=stream,
        steps=steps,
        log_every=log_every,
        ends=ends,
        saver=saver or NoSaver(),
        shown=shown,
        interrupted=event,
        log=RunLog(None, dict, dict),
        profiling=recorded,
        **more,
    )


def two(meeting):
    return Peers(0, (("a:0",), ("b:0",)), ("a", "b"), meeting)


def test_a_signal_that_comes_while_machines_agree_waits_for_the_next_time():
    """The others do not know of it, and make the steps that were agreed on."""
    event = Interruption()
    meeting = Other(lambda topic, number: event.set() if (topic, number) == ("the next steps", 2) else None)
    stream = Taken(seconds=0.1)
    history = fitting(stream, steps=99, interrupted=event, peers=two(meeting)).run()
    assert stream.taken == [1, 5]
    assert meeting.topics == ["the next steps"] * 3 + ["the end of the fit"]
    assert event.ends
    assert len(history.losses) == 6


def test_how_long_ago_a_signal_was_is_what_all_were_told():
    """Two clocks would let one machine end and not the other."""
    saver, waits, told = EveryTen(), [], []
    saver.can_end = lambda step, waited: waits.append(waited) or step == 10

    def answer(value):
        told.append(max(4.5, value[1][1] if value[1] else 0.0))
        return [value[0], (15, 4.5), *value[2:]]

    fitting(Taken(), steps=99, saver=saver, peers=two(Other(the_next_steps=answer))).run()
    assert waits == told
    assert saver.asked[-1] == "finish"


def test_a_signal_that_no_other_machine_knows_of_does_not_end_the_fit():
    event = Interruption()
    meeting = Other(lambda topic, _: event.set() if topic == "the end of the fit" else None)
    fitting(Taken(), steps=9, interrupted=event, peers=two(meeting)).run()
    assert event.is_set()
    assert not event.ends  # after the fit, it is passed on


@pytest.mark.parametrize(
    ("at_hand", "words"),
    [
        ([100, 7], "batches of 0 and 100 rows"),
        ([0, 8], "is not the same on all machines"),  # as many rows, of another width
    ],
)
def test_machines_with_other_batches_before_them_are_told_before_a_step(at_hand, words):
    """In steps of another size nobody meets them."""
    told = {"the_next_steps": lambda value: [*value[:3], at_hand]}
    stream = Taken()
    own = fitting(stream, steps=9, peers=two(Other(**told)))
    own._at_hand = lambda: [0, 7]
    with pytest.raises(cn.InvalidArgument, match=words) as error:
        own.run()
    assert "Sort the files" in str(error.value)
    assert stream.taken == []


def test_data_that_end_sooner_elsewhere_are_told_before_a_step():
    told = {"the_next_steps": lambda value: [*value[:3], [0, 0]]}
    own = fitting(Taken(), steps=9, peers=two(Other(**told)))
    own._at_hand = lambda: [16, 7]
    with pytest.raises(cn.InvalidArgument, match="b has come to the end of its data, and a trains on"):
        own.run()


def test_of_data_of_their_own_a_batch_without_a_row_is_no_end():
    """The step tells of it; to end the fit would leave out all that comes after it."""
    stream = Taken()
    own = fitting(stream, steps=2, peers=replace(two(Other()), sharded=True))
    own._at_hand = lambda: [0, 7]
    own.run()
    assert stream.taken == [1, 1]


def test_machines_that_train_by_themselves_make_as_many_steps_or_are_told():
    """And they are told after each has said that it is back, so that nobody waits for ever."""
    meeting = Other(losses=lambda value: [value[0][:-1], *value[1:]])
    own = fitting(Taken(), steps=9, peers=two(meeting), apart=True)
    with pytest.raises(cn.InvalidArgument, match="of the last steps a made 1, b made 0"):
        own.run()
    assert meeting.told_back == [None]


def test_calls_end_at_log_lines_and_take_half_a_second():
    stream = Taken(seconds=0.1)
    history = fitting(stream, steps=20).run()
    # The first call shows how long a step takes; then five fit into half a second.
    assert stream.taken == [1, 5, 2, 5, 3, 4]
    assert stream.held == [20, 19, 14, 12, 7, 4]
    assert [record.step for record in history.records] == [8, 16, 20]
    assert len(history.losses) == 20
    assert history.examples == 80


def test_calls_end_at_saves_too():
    stream, saver = Taken(), EveryTen()
    fitting(stream, steps=20, saver=saver).run()
    assert stream.taken == [1, 7, 2, 6, 4]
    assert stream.held == [10, 9, 2, 10, 4]
    assert saver.asked == [(s, True, False) for s in (1, 8, 10, 16, 20)] + ["finish"]


def test_without_a_number_of_steps_the_data_end_the_fit():
    stream = Taken(batches=11)
    history = fitting(stream).run()
    assert stream.taken == [1, 7, 3, 0]
    assert set(stream.held) == {NEVER}
    assert [record.step for record in history.records] == [8, 11]


def test_a_callback_ends_the_fit_and_the_saver_is_told():
    stream, saver = Taken(begun=2), EveryTen()
    history = fitting(stream, steps=99, saver=saver, ends=lambda record: record.step == 8).run()
    # What was begun beyond it is completed, and counts.
    assert saver.asked[-3:] == [(8, True, True), (10, True, True), "finish"]
    assert [record.step for record in history.records] == [8, 10]


def test_an_interruption_ends_the_fit_where_the_saver_allows_it():
    event, saver = Interruption(), EveryTen()
    saver.can_end = lambda step, waited: step == 10
    event.set()
    history = fitting(Taken(), steps=99, saver=saver, interrupted=event).run()
    assert [record.step for record in history.records] == [8, 10]
    # Before the first step, without a saver: nothing was trained, and that is no mistake of the data.
    assert fitting(Taken(), steps=99, interrupted=event).run().records == []


def test_data_without_a_batch_are_told():
    with pytest.raises(cn.InvalidArgument, match="gave no batch"):
        fitting(Taken(batches=0)).run()


def test_too_many_steps_without_an_update_end_the_fit():
    stream = Taken(idle=MOST_SKIPPED)
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        fitting(stream, steps=99).run()
    assert stream.idle == 0  # who trains on may try as long again


def test_a_saver_that_saves_nothing_has_all_that_a_fit_asks_of_a_saver():
    for name, own in vars(NoSaver).items():
        theirs = inspect.getattr_static(Saver, name, None)
        if inspect.isfunction(own) and not name.startswith("__"):
            assert list(inspect.signature(own).parameters) == list(inspect.signature(theirs).parameters), name
    public = {name for name in vars(Saver) if not name.startswith("_")} | {"stalled"}
    for_keras = {"found", "batches"}  # which has a loop of its own
    assert public - for_keras <= set(dir(NoSaver))


def test_calls_end_where_a_profile_begins_and_ends():
    stream = Taken()
    history = fitting(stream, steps=20, log_every=100, profile=range(4, 8)).run()
    edges = list(itertools.accumulate(stream.taken))
    assert {3, 7, 20} <= set(edges)
    assert stream.held[0] == 3  # nothing may be under way where it begins
    assert history.timeline == Timeline.of([])
