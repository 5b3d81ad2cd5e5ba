"""Texts of JSON with random changes: each is read, or refused with one error; nothing else is ever raised."""

import json
import os
import random
from copy import deepcopy

import pytest

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.link import Device
from colonnade.describe.plan import Candidate, Plan, Prediction
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument
from colonnade.reason.planning.planner import choose

MUTATIONS = 100_000 // int(os.environ.get("COLONNADE_SOAK", "1"))
PREDICTED = Prediction(1.0, 8.0, 0.5, 100, 10, 5)

NOUNS = {
    "workload": Workload.of(
        [
            LayerCost(
                "a", 1e9, 100, 50, 10, (Timing(1, 0.1, 0.2, 0.8), Timing(8, 0.5, 1.0)), 4, 2, 10, 5, 1e8
            ),
            ("b", 2e9, 7),
        ],
        batch=8,
        cores=1.5,
    ),
    "plan": Plan(
        batch=8,
        data=2,
        stage=2,
        layers=(0, 1, 1),
        predicted=PREDICTED,
        candidates=(Candidate("x", "y", PREDICTED),),
    ),
    "topology": Topology.groups([[0, 1], [2]]),
    "machines": Topology.machines([Topology.uniform(2, "NV2"), Topology.uniform(1)], network="10Gb"),
}
CARDS = Topology([Device("Tesla V100", 2**34)] * 4, Topology.uniform(4, "NV2").links)
STRANGE = [None, True, -1, 0, 2, 10**30, 1e308, -0.5, "", "x", [], {}, [[]], [None], {"a": 1}, "NaN", 2**63]


@pytest.mark.parametrize("name", NOUNS)
def test_no_text_is_a_traceback(name, record_property):
    noun, rng = NOUNS[name], random.Random(name)
    text, refused = noun.to_json(), 0
    for _ in range(MUTATIONS):
        changed = mutated(text, rng)
        try:
            read = type(noun).from_json(changed)
        except InvalidArgument as error:
            refused += bool(error.problems and str(error))
        else:
            assert type(noun).from_json(read.to_json()) == read
    record_property("refused", refused)
    assert 0.3 * MUTATIONS < refused <= MUTATIONS


def test_what_is_read_is_planned_or_refused():
    """Costs that nobody has: none of them is a traceback."""
    rng, text = random.Random(7), NOUNS["workload"].to_json()
    planned = 0
    for _ in range(MUTATIONS // 20):
        try:
            plan = choose(CARDS, Workload.from_json(mutated(text, rng)))
        except InvalidArgument:
            continue
        planned += 1
        assert Plan.from_json(plan.to_json()) == plan
    assert planned > MUTATIONS // 200


def mutated(text, rng):
    """Characters exchanged, or values somewhere inside."""
    if rng.random() < 0.4:
        at = rng.randrange(len(text))
        end = min(len(text), at + rng.randrange(1, 9))
        middle = rng.choice(
            ["", text[at:end] * 2, rng.choice('{}[]",:0123456789eE-.'), text[: rng.randrange(9)]]
        )
        return text[:at] + middle + text[end:]
    plain = json.loads(text)
    for _ in range(rng.randrange(1, 4)):
        change(plain, rng)
    return json.dumps(plain)


def change(plain, rng):
    """One value, name or length somewhere in a nest."""
    where = plain
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(where[key], dict | list) and where[key] and rng.random() < 0.7:
            where = where[key]
            continue
        break
    kind = rng.randrange(4)
    if kind == 0:
        where[key] = deepcopy(rng.choice(STRANGE))
    elif kind == 1:
        del where[key]
    elif kind == 2 and isinstance(where, dict):
        where[rng.choice(["extra", "", key + "x"])] = deepcopy(rng.choice(STRANGE))
    elif kind == 2:
        where.append(deepcopy(rng.choice([*STRANGE, where[key]])))
    elif isinstance(where[key], int | float) and not isinstance(where[key], bool):
        where[key] = where[key] * rng.choice([-1, 0, 0.5, 1e300, 2])
