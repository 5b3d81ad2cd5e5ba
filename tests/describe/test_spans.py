from colonnade.describe.spans import common, length, merged, without


def test_spans():
    assert merged([]) == []
    assert without([(0, 1), (2, 3)], [(0, 3)]) == []
    assert without([(0, 2), (3, 9)], [(1, 4), (5, 6)]) == [(0, 1), (4, 5), (6, 9)]
    assert common([(0, 2), (3, 9)], [(1, 4), (5, 6)]) == [(1, 2), (3, 4), (5, 6)]
    assert common([(0, 2)], []) == []
    assert length([(0, 2), (5, 6)]) == 3
