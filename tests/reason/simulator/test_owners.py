from colonnade.reason.simulator.owners import dealt


def test_the_largest_comes_first_and_each_goes_where_there_is_least():
    assert dealt([1, 2, 3, 4], 2) == [0, 1, 1, 0]


def test_the_largest_variable_is_not_divided():
    assert dealt([100, 1, 1, 1], 4) == [0, 1, 2, 3]


def test_in_turn_sizes_do_not_matter():
    assert dealt([100, 1, 1, 1], 3, by="turn") == [0, 1, 2, 0]
