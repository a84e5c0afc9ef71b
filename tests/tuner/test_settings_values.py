"""Settings as texts and as records; the engine's configs and the catalogue know the same ones."""

from dataclasses import MISSING, Field, fields, replace
from typing import Any

import pytest
from hypothesis import given

from engine.config import CacheConfig, SchedulerConfig
from engine.errors import UserError
from reports.commands import vllm_flags
from reports.settings import assignment
from tests.tuner.drawn_settings import SETTINGS
from tuner.catalogue import CATALOGUE
from tuner.settings import NAMES, Settings, parse_assignment, parse_value


def config_fields() -> list[Field[Any]]:
    return [f for config in (SchedulerConfig, CacheConfig) for f in fields(config)]


def test_every_option_of_the_engine_is_a_setting_with_the_same_default() -> None:
    options = {f.name: f.default for f in config_fields() if f.name != "num_gpu_blocks_override"}
    assert MISSING not in options.values()
    assert Settings().to_dict() == options


def test_the_catalogue_knows_every_setting_in_the_same_order() -> None:
    assert tuple(CATALOGUE) == NAMES


@pytest.mark.parametrize("name", [n for n in NAMES if CATALOGUE[n].kind.choices])
def test_the_catalogue_has_all_values_of_a_setting_that_has_few(name: str) -> None:
    choices = CATALOGUE[name].kind.choices
    assert choices is not None
    assert getattr(Settings(), name) in choices
    for choice in choices:
        assert getattr(replace(Settings(), **{name: choice}), name) == choice


@given(SETTINGS)
def test_engine_configs_carry_every_setting(settings: Settings) -> None:
    scheduler, cache = settings.scheduler(), settings.cache()
    carried = {name: getattr(scheduler, name, getattr(cache, name, None)) for name in NAMES}
    assert carried == settings.to_dict()
    assert cache.num_gpu_blocks_override is None


@given(SETTINGS)
def test_record_gives_the_same_settings_back(settings: Settings) -> None:
    assert Settings.from_dict(settings.to_dict()) == settings


@given(SETTINGS)
def test_the_assignments_that_a_report_prints_are_read_as_the_same_settings(settings: Settings) -> None:
    texts = [assignment(name, value) for name, value in settings.to_dict().items()]
    near = replace(settings, gpu_memory_utilization=Settings().override(texts).gpu_memory_utilization)
    assert near.gpu_memory_utilization == pytest.approx(settings.gpu_memory_utilization, rel=1e-3)
    assert Settings().override(texts) == near


def test_the_last_assignment_of_a_name_wins_and_spaces_do_not_matter() -> None:
    assert Settings().override(["max_num_seqs=8", " max_num_seqs = 96 "]).max_num_seqs == 96


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("chunk_size=off", 0),
        ("chunk_size=OFF", 0),
        ("max_queue_len=off", 0),
        ("max_queue_tokens=4096", 4096),
        ("enable_prefix_caching=off", False),
        ("retried_first=True", True),
        ("gpu_memory_utilization=1", 1.0),
        ("policy=priority", "priority"),
        ("batching=dynamic", "dynamic"),
        ("max_queue_delay=100ms", 0.1),
        ("queue_timeout=1m30s", 90.0),
        ("aging=off", 0.0),
        ("aging=0", 0.0),
        ("swap_space=512MiB", 512 << 20),
        ("swap_space=1048576", 1 << 20),
        ("swap_space=off", 0),
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
        "gpu_memory_utilization=most",
        "enable_prefix_caching=maybe",
        "policy=lifo",
        "batching=eager",
        "preemption_mode=drop",
        "aging=5",
        "queue_timeout=soon",
        "max_queue_delay=-1s",
        "swap_space=4 elephants",
        "swap_space=-1",
        "max_queue_len=1.5",
    ],
)
def test_impossible_assignment_is_refused_with_its_value(text: str) -> None:
    name, _, value = text.partition("=")
    with pytest.raises(UserError) as refusal:
        Settings().override([text])
    assert name in str(refusal.value)
    assert value in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("policy=lifo", "fcfs, sjf, priority, tiered"),
        ("batching=eager", "continuous, static, dynamic"),
        ("aging=5", "unit"),
        ("swap_space=5x", "unit"),
        ("max_queue_len=none", "or off"),
    ],
)
def test_a_refusal_says_what_would_be_right(text: str, right: str) -> None:
    with pytest.raises(UserError, match=right):
        Settings().override([text])


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    for attempt in (lambda: parse_value("max_seqs", "8"), lambda: Settings.from_dict({"max_seqs": 8})):
        with pytest.raises(UserError, match=r"'max_seqs': did you mean max_num_seqs\?"):
            attempt()


def test_a_name_like_no_other_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'zz'.*max_num_seqs.*preemption_victim"):
        parse_value("zz", "8")


@given(SETTINGS)
def test_the_catalogue_and_the_reports_agree_on_what_vllm_has(settings: Settings) -> None:
    label = vllm_flags(settings.to_dict(), {}).label
    left_out = set(label.partition("without ")[2].partition(":")[0].split(", ")) - {""}
    changed = {name for name in NAMES if getattr(settings, name) != getattr(Settings(), name)}
    # vLLM has the option, and two of its values.
    changed -= {"policy"}
    assert left_out - {"policy"} == {name for name in changed if CATALOGUE[name].vllm is None}
