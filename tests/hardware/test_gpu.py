import pytest

from colonnade.hardware import gpu
from colonnade.hardware.cards import Card, Instance

BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
CARDS = tuple(
    Card(i, f"GPU-{start}-d72c", f"00000000:{i:02X}:00.0", "Test card", 16 * 2**30)
    for i, start in enumerate(("8932f937", "89aa0000", "c12f20bd", "fed9f600"))
)
PARTS = (
    Instance("MIG-aaaa-1", 2, 0, 2**34),
    Instance("MIG-aabb-2", 3, 0, 2**33),
    Instance("MIG-cccc-3", 3, 1, 2**33),
)
DIVIDED = Card(2, "GPU-c12f20bd-d72c", "00000000:02:00.0", "Test card", 2**36, mig=True, instances=PARTS)
MIXED = (*CARDS[:2], DIVIDED)


def ordinals(cards, listed, **environment):
    """What has a CUDA ordinal, in its order: NVML indices, or UUIDs of instances."""
    rows = gpu.names(
        cards, {**BUS, **environment, **({} if listed is None else {"CUDA_VISIBLE_DEVICES": listed})}
    )
    seen = sorted((row for row in rows if row.ordinal is not None), key=lambda row: row.ordinal)
    assert [row.ordinal for row in seen] == list(range(len(seen)))
    assert [row.device for row in seen] == [f"/device:GPU:{i}" for i in range(len(seen))]
    assert all(row.visible == (row in seen) for row in rows)
    return [row.uuid if row.instance else row.index for row in seen]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("3,2,1,0", [3, 2, 1, 0]),
        ("2", [2]),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,2,-1,1", [0, 2]),
        ("0,7,1", [0]),
        ("7,0", []),
        ("1,1", []),
        ("0,1,0", []),
        ("1x,2y", [1, 2]),
        ("GPU-c12f20bd-d72c", [2]),
        ("GPU-c1,GPU-8932", [2, 0]),
        ("GPU-f,GPU-c", [3, 2]),
        ("GPU-89", []),
        ("GPU-c1,GPU-89,GPU-f", [2]),
        ("GPU-8932,GPU-8932f9", []),
        ("GPU-c1,0", [2]),
        ("0,GPU-c1", [0]),
        ("gpu-c1", []),
    ],
)
def test_visible_devices(listed, expected):
    assert ordinals(CARDS, listed) == expected
    environment = BUS if listed is None else {**BUS, "CUDA_VISIBLE_DEVICES": listed}
    assert [card.index for card in gpu.visible(CARDS, environment)] == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ["MIG-aaaa-1"]),  # one instance, and no card beside it
        ("0,1", [0, 1]),
        ("0,2", ["MIG-aaaa-1"]),
        ("2", ["MIG-aaaa-1"]),
        ("GPU-c12f20bd-d72c", ["MIG-aaaa-1"]),
        ("MIG-aabb-2", ["MIG-aabb-2"]),
        ("MIG-cc", ["MIG-cccc-3"]),
        ("MIG-aa", []),
        ("MIG-aabb-2,MIG-aaaa-1", ["MIG-aabb-2"]),
        ("MIG-GPU-c12f20bd-d72c/3/1", ["MIG-cccc-3"]),
        ("MIG-GPU-c12f20bd-d72c/9/0", []),
        ("0,MIG-aaaa-1", [0]),
    ],
)
def test_mig(listed, expected):
    assert ordinals(MIXED, listed) == expected


def test_an_instance_is_a_card_with_its_own_memory():
    (card,) = gpu.visible(MIXED, {"CUDA_VISIBLE_DEVICES": "MIG-aabb-2"})
    assert (card.index, card.uuid, card.memory) == (2, "MIG-aabb-2", 2**33)
    assert gpu.visible([Card(0, "GPU-1", "0000:01:00.0", "empty", 2**30, mig=True)], {}) == ()


def test_without_bus_order_the_order_of_different_cards_is_not_known():
    cards = (*CARDS[:2], Card(2, "GPU-0", "00000000:02:00.0", "Another card", 2**30))
    assert [row.ordinal for row in gpu.names(cards, {})] == [None] * 3
    assert all(row.visible for row in gpu.names(cards, {}))
    assert [row.ordinal for row in gpu.names(cards, BUS)] == [0, 1, 2]
    assert [row.ordinal for row in gpu.names(CARDS, {})] == [0, 1, 2, 3]  # equal cards stay as they are
    by_uuid = gpu.names(cards, {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-8932"})
    assert [row.ordinal for row in by_uuid] == [1, None, 0]


def test_devices_that_tensorflow_was_told_to_use():
    rows = gpu.names(CARDS, {**BUS, "CUDA_VISIBLE_DEVICES": "3,1,0"}, chosen=[0, 2])
    assert [(row.index, row.ordinal, row.device) for row in rows] == [
        (0, 2, "/device:GPU:1"),
        (1, 1, None),
        (2, None, None),
        (3, 0, "/device:GPU:0"),
    ]
