"""Settings as texts, as records, and in their plainest form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from tuner.settings import NAMES, Settings, parse_assignment, parse_value

SETTINGS = st.builds(
    Settings,
    gpu_memory_utilization=st.floats(0.01, 1.0),
    max_num_seqs=st.integers(1, 4096),
    max_num_batched_tokens=st.integers(1, 32768),
    chunk_size=st.integers(0, 32768),
    policy=st.sampled_from(["fcfs", "priority"]),
    block_size=st.sampled_from([8, 16, 32]),
    enable_prefix_caching=st.booleans(),
)


@given(SETTINGS)
def test_canonical_never_has_more_seats_or_a_larger_chunk_than_tokens(settings: Settings) -> None:
    plain = settings.canonical()
    assert plain.max_num_seqs <= plain.max_num_batched_tokens
    assert plain.chunk_size < plain.max_num_batched_tokens


@given(SETTINGS)
def test_canonical_is_idempotent_and_keeps_what_has_an_effect(settings: Settings) -> None:
    plain = settings.canonical()
    assert plain.canonical() == plain
    kept = {"gpu_memory_utilization", "max_num_batched_tokens", "policy", "block_size", "enable_prefix_caching"}
    assert {n: plain.to_dict()[n] for n in kept} == {n: settings.to_dict()[n] for n in kept}
    if settings.max_num_seqs <= settings.max_num_batched_tokens:
        assert plain.max_num_seqs == settings.max_num_seqs
    if settings.chunk_size < settings.max_num_batched_tokens:
        assert plain.chunk_size == settings.chunk_size


@given(SETTINGS)
def test_record_and_assignments_give_the_same_settings_back(settings: Settings) -> None:
    values = settings.to_dict()
    assert Settings.from_dict(values) == settings
    assert Settings().override(f"{name}={value}" for name, value in values.items()) == settings


def test_the_last_assignment_of_a_name_wins_and_spaces_do_not_matter() -> None:
    assert Settings().override(["max_num_seqs=8", " max_num_seqs = 96 "]).max_num_seqs == 96


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("chunk_size=off", 0),
        ("chunk_size=OFF", 0),
        ("enable_prefix_caching=off", False),
        ("enable_prefix_caching=True", True),
        ("gpu_memory_utilization=1", 1.0),
        ("policy=priority", "priority"),
    ],
)
def test_assignment_is_read_as_the_settings_own_type(text: str, value: object) -> None:
    name, parsed = parse_assignment(text)
    assert parsed == value
    assert type(parsed) is type(getattr(Settings(), name))


@pytest.mark.parametrize(
    "text",
    [
        "max_num_seqs",
        "max_num_seqs=",
        "max_num_seqs=many",
        "max_num_seqs=1.5",
        "max_num_seqs=off",
        "max_num_seqs=0",
        "max_num_batched_tokens=-1",
        "chunk_size=-1",
        "gpu_memory_utilization=1.2",
        "gpu_memory_utilization=nan",
        "enable_prefix_caching=maybe",
        "policy=lifo",
    ],
)
def test_impossible_assignment_is_refused_with_its_value(text: str) -> None:
    name, _, value = text.partition("=")
    with pytest.raises(UserError) as refusal:
        Settings().override([text])
    assert name in str(refusal.value)
    assert value in str(refusal.value)


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    for attempt in (lambda: parse_value("seats", "8"), lambda: Settings.from_dict({"seats": 8})):
        with pytest.raises(UserError, match=r"'seats'.*max_num_seqs"):
            attempt()


def test_engine_configs_carry_every_setting() -> None:
    settings = Settings(0.7, 5, 100, 50, "priority", 32, False)
    scheduler, cache = settings.scheduler(), settings.cache()
    carried = {name: getattr(scheduler, name, getattr(cache, name, None)) for name in NAMES}
    assert carried == settings.to_dict()
