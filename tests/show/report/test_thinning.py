"""Curves that are thinned keep what can be seen of them."""

from hypothesis import given
from hypothesis import strategies as st

from colonnade.show.report.thinning import extremes, kept

values = st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), min_size=1, max_size=400)


@given(values, st.integers(5, 60))
def test_highest_lowest_ends_and_gaps_stay(curve, most):
    chosen = kept(curve, most)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= max(most, 5)
    assert {chosen[0], chosen[-1]} == {0, len(curve) - 1}
    known = [value for value in curve if value is not None]
    shown = [curve[i] for i in chosen if curve[i] is not None]
    if known:
        assert (min(shown), max(shown)) == (min(known), max(known))
    assert (None in curve) == any(curve[i] is None for i in chosen)


def test_every_spike_of_a_long_curve_stays():
    spikes = range(500, 100_000, 1000)
    curve = [0.0] * 100_000
    for i in spikes:
        curve[i] = 1.0 + i
    chosen = set(kept(curve))
    assert len(chosen) <= 2000
    assert chosen >= set(spikes)


@given(values, st.integers(1, 50))
def test_a_band_holds_all(curve, most):
    middles, lows, highs = extremes(curve, curve, most)
    assert len(middles) == len(lows) == len(highs) == min(len(curve), most)
    assert middles == sorted(set(middles))
    known = [value for value in curve if value is not None]
    if known:
        assert min(v for v in lows if v is not None) == min(known)
        assert max(v for v in highs if v is not None) == max(known)


def test_a_short_curve_is_left_alone():
    assert kept([1.0, None, 2.0]) == [0, 1, 2]
