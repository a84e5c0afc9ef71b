"""Numbers as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import format as f

WRITERS = [
    f.number,
    f.count,
    f.milliseconds,
    f.seconds,
    f.percent,
    f.required_percent,
    f.attained_percent,
    f.change,
    f.request_rate,
    f.token_rate,
    f.size,
    f.plain,
]


@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_what_was_not_measured_is_a_dash(write):
    assert write(None) == f.DASH


@pytest.mark.parametrize("write", [w for w in WRITERS if w is not f.plain], ids=lambda w: w.__name__)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_a_dash(write, value):
    assert write(value) == f.DASH


@pytest.mark.parametrize(
    ("ms", "written"),
    [
        (0, "0 ms"),
        (0.85, "850 µs"),
        (9.42, "9.42 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (1240, "1.24 s"),
        (59_949, "59.9 s"),
        (125_000, "2 min 05 s"),
        (3_900_000, "1 h 05 min"),
    ],
)
def test_durations_take_the_unit_a_person_would_choose(ms, written):
    assert f.milliseconds(ms) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (0.0123, "0.0123"),
        (9.999, "10.0"),
        (6.25, "6.25"),
        (1234.5, "1,234"),
        (1_234_567, "1,234,567"),
        (-2.5, "−2.50"),
    ],
)
def test_numbers_keep_three_significant_digits_and_whole_parts_in_full(value, written):
    assert f.number(value) == written


@given(st.floats(min_value=0.001, max_value=1e9))
def test_a_written_number_is_within_half_a_percent_of_the_value(value):
    assert float(f.number(value).replace(",", "")) == pytest.approx(value, rel=0.006)


@given(st.floats(min_value=0, max_value=1), st.integers(min_value=1, max_value=999))
def test_a_share_below_its_bound_never_reads_as_met(share, bound_permille):
    bound = bound_permille / 1000
    if share < bound - 1e-9:
        assert float(f.attained_percent(share).removesuffix("%")) < bound * 100


def test_changes_carry_their_sign_and_no_change_carries_none():
    assert f.change(0.231) == "+23.1%"
    assert f.change(-0.02) == "−2.0%"
    assert f.change(-0.0001) == "0.0%"


def test_an_interval_names_a_shared_unit_once_and_is_a_dash_when_open():
    assert f.interval(2.5, 3.25, f.request_rate) == "2.50 to 3.25 req/s"
    assert f.interval(0.1, 0.2, f.change) == "+10.0% to +20.0%"
    assert f.interval(800, 1200, f.milliseconds) == "800 ms to 1.20 s"
    assert f.interval(None, 3.25, f.request_rate) == f.DASH


def test_settings_are_written_as_the_command_line_takes_them():
    assert [f.plain(v) for v in (True, 0.9, 4096, 6.0, "fcfs")] == ["true", "0.9", "4096", "6", "fcfs"]


@given(st.text())
def test_clean_text_has_no_control_or_direction_characters(value):
    cleaned = f.clean(value)
    assert len(cleaned) == len(value)
    assert not any(c in cleaned for c in "\x1b\n\r\t\x00\u202e\u2066")
