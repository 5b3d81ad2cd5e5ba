from dataclasses import fields

from colonnade.describe.layer_cost import LAYER_RULES, TIMING_RULES, LayerCost, Timing


def test_every_field_has_a_rule():
    assert {field.name for field in fields(LayerCost)} == {*LAYER_RULES, "timings", "pieces"}
    assert {field.name for field in fields(Timing)} == set(TIMING_RULES)


def test_timings_from_a_list_are_frozen():
    assert LayerCost("a", timings=[Timing(1, 1.0, 1.0)]).timings == (Timing(1, 1.0, 1.0),)
