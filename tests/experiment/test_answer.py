"""The sentences follow from the figures: other figures, other sentences."""

import re

import pytest
from outcomes import made_up

from colonnade.experiment.answer import answer, others

RACED = ("asynchronous", "staleness 16", "staleness 4", "staleness 1")


def said(one_rate, own_rate=0.96, in_turn=0.96, noisy=0.8):
    """Asynchronous training at these accuracies; synchronous has 0.96, and 0.8 with noise."""

    def accuracy(trial, rate):
        if trial.mode == "in turn":
            return in_turn
        return 0.96 if trial.mode not in RACED else own_rate if rate == 0.5 else one_rate

    findings = made_up(
        accuracy,
        lambda trial, rate: noisy if trial.mode in RACED else 0.8,
        best=lambda trial: 0.5 if trial.mode in RACED else 1.0,
    )
    return answer(findings)


def test_three_sentences_with_the_figures():
    claims = said(0.2)
    assert len(claims) == 3
    first, second, third = (claim.sentence for claim in claims)
    assert "6 devices that each push their own step end at 20.0% on the test images instead of 96.0%" in first
    assert "-76.0 points, 95% interval -76.0 to -76.0" in first
    assert "1/2 instead of 1, it ends at 96.0% against 96.0%" in second
    assert "80.0% against 80.0%" in third
    assert "2.0 against 2.0 points" in third
    for sentence in (first, second, third):
        assert sentence.endswith(".")
        assert len(re.findall(r"\.(?:\s|$)", sentence)) == 1


@pytest.mark.parametrize(
    ("figures", "which", "says"),
    [
        ({"one_rate": 0.2}, 0, "It is over-correction: .* it is the age of the gradients that does the harm"),
        ({"one_rate": 0.2, "in_turn": 0.2}, 0, "it is the number of pushes that does the harm"),
        ({"one_rate": 0.962}, 0, "It is no over-correction that this experiment could see"),
        ({"one_rate": 0.98}, 0, "It is no over-correction but a gain"),
        ({"one_rate": 0.2}, 1, "no loss that counts is left"),
        ({"one_rate": 0.2, "own_rate": 0.9}, 1, "a smaller loss stays"),
        ({"one_rate": 0.2, "own_rate": 0.98}, 1, "the loss turns into a gain"),
        ({"one_rate": 0.96, "own_rate": 0.98}, 1, "its accuracy is higher"),
        ({"one_rate": 0.2}, 2, "its noise is neither welcome nor harmful"),
        ({"one_rate": 0.2, "noisy": 0.9}, 2, "its noise is welcome, the model is more robust"),
        ({"one_rate": 0.2, "noisy": 0.7}, 2, "less robust"),
    ],
)
def test_a_sentence_follows_from_the_figures(figures, which, says):
    assert re.search(says, said(**figures)[which].sentence)


def test_cases_in_which_it_does_not_hold_are_listed():
    findings = made_up(
        lambda trial, rate: 0.96 if trial.mode not in RACED or trial.num_devices == 2 else 0.2,
    )
    first = answer(findings)[0]
    assert first.short.endswith("asynchronous training is lower")
    assert first.fails[0] == "asynchronous, even devices: 2 (+0.0)"
    assert first.holds[0] == "asynchronous, even devices: 6 (-76.0)"
    assert len(first.fails) == len(first.holds) == 4 * 2


def test_other_rates_at_which_it_does_not_hold_are_listed():
    findings = made_up(lambda trial, rate: 0.99 if trial.mode in RACED and rate == 0.25 else 1 - rate / 2)
    (case,) = answer(findings)[0].fails[-1:]
    assert case == "asynchronous, 6 even devices, where both have a smaller rate: 1/4 (+11.5)"


def test_a_sentence_for_each_of_the_other_modes():
    findings = made_up(lambda trial, rate: 0.9 if trial.mode == "elastic" else 0.96)
    damped, local, diloco, elastic = others(findings)
    assert damped.startswith("damped, on 6 devices, is no different at that rate")
    assert local.startswith("local 8, on 6 devices, is no different at that rate (+0.0 points")
    assert diloco.endswith("with 100.0% of the bytes of synchronous training.")
    assert "elastic, on 6 devices, is lower at that rate (-6.0 points" in elastic
