import keras

import colonnade as cn
from colonnade.run.keras_steps.group_step import CutOrWhole, GroupStep
from colonnade.run.keras_steps.keras_step import KerasStep
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.keras_train.model_steps import How, ModelSteps


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def steps(made, devices=2, **options):
    how = How.chosen("here", devices, None, "auto", True, **options)
    assert list(how.problems(made)) == []
    return ModelSteps(made, how, print)


def compiled(kind=keras.Sequential):
    made = kind([keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def test_the_step_is_chosen_by_the_model_and_by_how_it_is_trained():
    assert type(steps(compiled()).train) is KerasStep
    assert type(steps(compiled(Own)).train) is OwnStep
    assert type(steps(compiled(), per_device=True).train) is GroupStep
    assert type(steps(compiled(), devices=1).train) is CutOrWhole
    assert type(steps(compiled(), devices=1, split=[0]).train) is KerasStep


def test_steps_are_used_again_for_the_same_and_only_for_that():
    made = compiled()
    first = steps(made)
    used = first.train, first.test, first.predict
    first.keep()
    again = steps(made)
    assert (again.train, again.test, again.predict) == used
    assert steps(made, devices=3).train is not first.train
    assert steps(made, per_device=True).train is not first.train
    made.compile("sgd", "mse")
    assert steps(made).train is not first.train


def test_all_that_is_wrong_is_said_at_once():
    how = How.chosen("here", 2, cn.LocalSGD(2), "nowhere", "maybe", [1.5], per_device=True)
    names = [problem.argument for problem in how.problems(keras.Sequential())]
    assert names.count("variables") == 2
    assert {"model", "prove", "split", "sync"} <= set(names)
