"""Length distributions: within their bounds, with the mean they claim, one draw each."""

import numpy as np
import pytest

from engine.errors import UserError
from workloads.kinds import parse_kind
from workloads.lengths import LENGTHS
from workloads.streams import stream

KINDS = [
    "fixed:128",
    "uniform:500..2000",
    "lognormal:median=800,sigma=0.8,low=16,high=4000",
    "lognormal:mean=800,sigma=1.5,low=100,high=1000",
]


def lengths(text):
    return parse_kind(text, LENGTHS, "prompt_tokens")


@pytest.mark.parametrize("text", KINDS)
def test_draws_keep_their_bounds_and_their_mean(text):
    distribution = lengths(text)
    drawn = distribution.draw(stream(0, "prompt lengths"), 100_000)
    assert drawn.min() >= 1
    assert drawn.max() <= distribution.max_tokens
    assert drawn.mean() == pytest.approx(distribution.mean_tokens, rel=0.01)


def test_uniform_reaches_both_ends_alike():
    counts = np.bincount(lengths("uniform:1..4").draw(stream(1, "prompt lengths"), 40_000))
    assert counts[0] == 0
    assert counts[1:] == pytest.approx([10_000] * 4, rel=0.05)


def test_median_and_mean_describe_the_distribution_before_clipping():
    drawn = lengths("lognormal:median=800,sigma=1,high=1000000").draw(stream(2, "prompt lengths"), 100_000)
    assert np.median(drawn) == pytest.approx(800, rel=0.02)
    drawn = lengths("lognormal:mean=800,sigma=1,high=1000000").draw(stream(2, "prompt lengths"), 100_000)
    assert drawn.mean() == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize("text", KINDS)
def test_the_text_form_reads_back(text):
    assert lengths(str(lengths(text))) == lengths(text)


def test_a_bare_number_is_fixed():
    assert lengths(128) == lengths("128") == lengths({"kind": "fixed", "tokens": 128})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0", "greater than or equal to 1"),
        ("99999999999", "less than or equal to 10000000"),
        ("12.5", "tokens='12.5' is not possible"),
        ("many", "tokens='many' is not possible"),
        (True, "prompt_tokens=True is not possible"),
        (None, "prompt_tokens=None is not possible: choose among fixed:128"),
        ("uniform:2000..500", "low=2000 is above high=500"),
        ("uniform:500", "'500' names no parameter"),
        ("uniform:1..2,low=1", "low twice"),
        ("lognormal:sigma=1,high=9", "either median or mean"),
        ("lognormal:median=3,mean=4,sigma=1,high=9", "either median or mean"),
        ("lognormal:median=3,sigma=1", "'high' is missing"),
        ({"kind": "zipf"}, "unknown kind 'zipf'"),
        ({"tokens": 3}, "unknown kind ''"),
    ],
)
def test_a_length_that_cannot_be_is_answered_with_the_right_form(value, message):
    with pytest.raises(UserError, match=message):
        lengths(value)
