"""Settings in their plainest form: what cannot act is at its default, and what acts is kept."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.tuner.drawn_settings import SETTINGS
from tuner.settings import NAMES, Settings

DEFAULTS = Settings().to_dict()
# They always do what they say.
ALWAYS_KEPT = (
    "gpu_memory_utilization", "max_num_batched_tokens", "block_size", "enable_prefix_caching", "policy",
    "short_first_tokens", "retried_first", "max_queue_len", "max_queue_tokens", "queue_timeout", "max_predicted_wait",
)  # fmt: skip


@given(SETTINGS)
def test_canonical_is_idempotent(settings: Settings) -> None:
    assert settings.canonical().canonical() == settings.canonical()


@given(SETTINGS)
def test_what_always_acts_is_kept(settings: Settings) -> None:
    plain = settings.canonical()
    assert {n: getattr(plain, n) for n in ALWAYS_KEPT} == {n: getattr(settings, n) for n in ALWAYS_KEPT}


@given(SETTINGS)
def test_what_cannot_act_is_at_its_default(settings: Settings) -> None:
    plain = settings.canonical()
    for name in NAMES:
        if plain.inert_beside(name):
            assert getattr(plain, name) == DEFAULTS[name]


@given(SETTINGS)
def test_no_chunk_beyond_the_budget_and_no_more_continuous_seats_than_tokens(settings: Settings) -> None:
    plain = settings.canonical()
    assert plain.chunk_size < plain.max_num_batched_tokens
    if settings.chunk_size < settings.max_num_batched_tokens:
        assert plain.chunk_size == settings.chunk_size
    if plain.batching == "continuous":
        assert plain.max_num_seqs == min(settings.max_num_seqs, settings.max_num_batched_tokens)
    else:
        assert plain.max_num_seqs == settings.max_num_seqs


@given(SETTINGS)
def test_an_option_that_cannot_act_makes_no_two_settings_different(settings: Settings) -> None:
    for name in NAMES:
        if settings.inert_beside(name):
            assert replace(settings, **{name: DEFAULTS[name]}).canonical() == settings.canonical()


@pytest.mark.parametrize(
    ("given_values", "plain"),
    [
        ({"aging": 5.0}, {}),
        ({"aging": 5.0, "policy": "sjf"}, None),
        ({"aging": 5.0, "short_first_tokens": 64}, None),
        ({"aging": 5.0, "retried_first": True}, None),
        ({"aging": 5.0, "preemption_victim": "lowest_priority"}, None),
        ({"max_queue_delay": 0.1, "preferred_batch_size": 8}, {}),
        ({"batching": "static", "max_queue_delay": 0.1, "preferred_batch_size": 8}, {"batching": "static"}),
        ({"batching": "dynamic"}, {"batching": "static"}),
        ({"batching": "dynamic", "max_queue_delay": 0.1}, None),
        # Such a batch is formed at once as well, but it is a smaller one.
        ({"batching": "dynamic", "preferred_batch_size": 8}, None),
        ({"batching": "dynamic", "preferred_batch_size": 256}, {"batching": "static"}),
        ({"batching": "dynamic", "max_queue_delay": 0.1, "max_num_seqs": 1}, {"batching": "static", "max_num_seqs": 1}),
        (
            {"batching": "dynamic", "max_queue_delay": 0.1, "preferred_batch_size": 256},
            {"batching": "dynamic", "max_queue_delay": 0.1},
        ),
        ({"swap_space": 1 << 30}, {}),
        ({"preemption_mode": "swap", "swap_space": 0}, {}),
        ({"preemption_mode": "auto", "swap_space": 1 << 30}, None),
        ({"preemption_victim": "last"}, {}),
        ({"preemption_victim": "lowest_priority", "policy": "tiered"}, {"policy": "tiered"}),
        ({"preemption_victim": "last", "policy": "priority"}, None),
        ({"preemption_victim": "lowest_priority"}, None),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, {"max_num_seqs": 32, "max_num_batched_tokens": 32}),
        # A static batch is prefilled in several steps and decodes in turns.
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32, "batching": "static"}, None),
        ({"chunk_size": 2048}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_equal_behaviour_has_one_form(given_values: dict[str, Any], plain: dict[str, Any] | None) -> None:
    """`plain` None: the settings are in their plainest form already."""
    settings = Settings.from_dict(given_values)
    assert settings.canonical() == (settings if plain is None else Settings.from_dict(plain))
