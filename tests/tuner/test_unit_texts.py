"""Durations and sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from tuner.units import format_duration, parse_bytes, parse_duration_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h", 3600),
        ("1h30m", 5400),
        ("1.5S", 1.5),
        (" 2m5s ", 125),
        ("200ms", 0.2),
        ("700ms", 0.7),
        ("1s500ms", 1.5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s("--budget", text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10x", "10m 5", "-5s", "1e3s", "0s", "5s!", "5 ms", "5us"])
def test_other_durations_are_refused_with_option_and_value(text: str) -> None:
    with pytest.raises(UserError, match="--budget") as refusal:
        parse_duration_s("--budget", text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "size"),
    [("16GiB", 16 * 2**30), ("16g", 16 * 2**30), ("24GB", 24 * 10**9), ("512 MiB", 2**29), ("1.5k", 1536)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("--device-memory", text) == size


@pytest.mark.parametrize("text", ["", "16", "GiB", "16TiBs", "-1GiB", "0GiB", "1 2GiB"])
def test_other_sizes_are_refused_with_option_and_value(text: str) -> None:
    with pytest.raises(UserError, match="--device-memory") as refusal:
        parse_bytes("--device-memory", text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (-3, "0s"), (59.4, "59s"), (59.6, "1m"), (61, "1m 01s"), (3600, "1h 00m")]
)
def test_formatted_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(1, 3599) | st.integers(60, 2000).map(lambda minutes: 60 * minutes))
def test_a_formatted_duration_reads_back(seconds: int) -> None:
    assert parse_duration_s("--budget", format_duration(seconds).replace(" ", "")) == seconds
