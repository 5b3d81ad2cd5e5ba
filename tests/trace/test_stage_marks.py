"""Where a function passes from stage to stage, and where its gradient comes back."""

import tensorflow as tf

from colonnade.run.trace.stage_marks import Mark, StageMarks, backward_leg, stage_of


def marked(fn):
    """The marks that a function leaves in its graph, in the order in which they are made."""
    crossings = StageMarks()
    graph = tf.Graph()
    with graph.as_default():
        fn(crossings)
    return list(crossings.marks(graph).values())


def test_a_value_and_its_gradient_are_marked():
    def through(crossings):
        crossings.enter("pipeline", 3)
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = crossings.cross(x * 2.0, 0, 1, 3)
            loss = crossings.turn(crossings.cross(y * y, 1, 2, 3))
        tape.gradient(loss, x)

    forward, back = [Mark(0, 1), Mark(1, 2)], [Mark(3, 3), Mark(3, 4), Mark(4, 5)]
    assert marked(through) == [*forward, *back]


def test_a_value_that_skips_a_stage_comes_back_the_same_way():
    def skip(crossings):
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = crossings.cross(x, 0, 2, 3)
        tape.gradient(y, x)

    assert marked(skip) == [Mark(0, 2), Mark(3, 5)]


def test_whole_numbers_are_marked_one_way_and_python_values_not_at_all():
    def nest(crossings):
        crossed = crossings.cross({"ids": tf.constant([1, 2]), "name": "x", "none": None}, 0, 1, 2)
        assert (crossed["name"], crossed["none"]) == ("x", None)

    assert marked(nest) == [Mark(0, 1)]


def test_without_a_pipeline_nothing_turns():
    def plain(crossings):
        loss = tf.constant(1.0)
        assert crossings.turn(loss) is loss

    assert marked(plain) == []


def test_marks_of_other_graphs_do_not_count():
    crossings = StageMarks()
    with tf.Graph().as_default():
        crossings.cross(tf.constant(1.0), 0, 1, 2)
    assert crossings.marks(tf.Graph()) == {}


def test_a_stage_is_at_work_in_two_legs():
    for num_stages in (1, 2, 5):
        for stage in range(num_stages):
            assert stage_of(stage, num_stages) == stage
            assert stage_of(backward_leg(stage, num_stages), num_stages) == stage
