import optuna
import pytest

from colonnade.sweeps.slots.remote_trial import RemoteTrial

SAYS = {
    "study": "s",
    "storage": None,
    "number": 3,
    "folder": "/a/studies/s/trials/0003",
    "start": "2026-01-01T00:00:00",
}


class Recorded:
    """In place of a channel."""

    def __init__(self, answer=None):
        self.answer, self.asked = answer, []

    def ask(self, method, *args, **kwargs):
        self.asked.append((method, args, kwargs))
        return self.answer


def test_it_passes_for_a_trial_of_optunas():
    assert isinstance(RemoteTrial(Recorded(), SAYS), optuna.trial.BaseTrial)


def test_a_choice_is_the_object_that_was_passed():
    choices = [1, True, "1", None, 1.0]
    for at, choice in enumerate(choices):
        assert RemoteTrial(Recorded(at), SAYS).suggest_categorical("c", choices) is choice
    with pytest.raises(TypeError, match="so that they can be stored"):
        RemoteTrial(Recorded(0), SAYS).suggest_categorical("c", [(1, 2)])


def test_what_is_asked():
    channel = Recorded(0.5)
    trial = RemoteTrial(channel, SAYS)
    trial.suggest_float("x", 0, 1, log=True)
    trial.suggest_int("n", 1, 9, step=2)
    trial.report(1, 2.0)
    assert channel.asked == [
        ("suggest_float", ("x", 0, 1), {"step": None, "log": True}),
        ("suggest_int", ("n", 1, 9), {"step": 2, "log": False}),
        ("report", (1.0, 2), {}),
    ]


def test_it_has_what_every_trial_of_optunas_has():
    """But for the names that Optuna itself calls old or its own."""
    old = {
        "suggest_uniform",
        "suggest_loguniform",
        "suggest_discrete_uniform",
        "system_attrs",
        "set_system_attr",
    }
    public = {name for name in dir(optuna.trial.BaseTrial) if not name.startswith("_")}
    assert public - old <= set(dir(RemoteTrial(Recorded(), SAYS)))
