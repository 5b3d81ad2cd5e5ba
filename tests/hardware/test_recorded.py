"""The recorded machines, one of which is that of an article."""

from itertools import combinations

import pytest
from machines import seen

from colonnade.errors import InvalidArgument
from colonnade.hardware.cards import Process
from colonnade.hardware.recorded import recorded
from colonnade.reason.transfers.reduction import reduction


def test_the_machine_of_the_article():
    machine = seen(recorded("article"))
    assert [[link.peer for link in row] for row in machine.topology.links] == [
        [i // 2 == j // 2 for j in range(4)] for i in range(4)
    ]
    assert list(reduction(machine.topology)) == [((1, 0), (3, 2)), ((2, 0),)]
    assert machine.topology.best(2) == (0, 1)


def test_the_other_recorded_machines():
    dgx1 = seen(recorded("dgx1")).topology
    assert [sum(int(link.kind[2:]) for link in row if link.kind.startswith("NV")) for row in dgx1.links] == [
        6
    ] * 8
    assert all(link.peer == (link.kind != "SYS") for row in dgx1.links for link in row)
    assert dgx1.best(4) in combinations(range(8), 4)
    switch = seen(recorded("nvswitch")).topology
    assert {link.kind for row in switch.links for link in row} == {"X", "NV18"}
    consumer = seen(recorded("consumer"))
    assert not any(consumer.topology.link(i, j).peer for i, j in combinations(range(4), 2))
    assert consumer.cards[2].processes == (Process(31337, "linus", 22 * 2**30),)
    (card,) = seen(recorded("mig")).cards
    assert card.mig
    assert card.utilisation is None
    assert [part.memory // 2**30 for part in card.instances] == [20, 10, 5]
    with pytest.raises(InvalidArgument, match="article, dgx1, nvswitch, consumer, mig"):
        recorded("dgx2")
