"""Settings as people read them, as commands take them, and as vLLM's flags."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CacheConfig, SchedulerConfig
from reports.commands import bench_command, vllm_flags
from reports.settings import assignment, assignments, at_default, setting_text, short_names

USUAL = [
    "gpu_memory_utilization",
    "max_num_seqs",
    "max_num_batched_tokens",
    "chunk_size",
    "policy",
    "block_size",
    "enable_prefix_caching",
]
ENGINE_DEFAULTS = {
    field.name: getattr(config, field.name)
    for config in (SchedulerConfig(), CacheConfig())
    for field in fields(config)
    if field.name != "num_gpu_blocks_override"
}
BYTES = {"kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def test_the_defaults_are_the_engine_s():
    assert [name for name, value in ENGINE_DEFAULTS.items() if not at_default(name, value)] == []
    assert not at_default("unheard_of", 0)


@pytest.mark.parametrize(
    ("name", "value", "readable", "argument"),
    [
        ("aging", 5.0, "5 s", "aging=5s"),
        ("queue_timeout", 0.2, "200 ms", "queue_timeout=0.2s"),
        ("max_queue_delay", 0.0, "off", "max_queue_delay=off"),
        ("swap_space", 4 << 30, "4 GiB", "swap_space=4GiB"),
        ("swap_space", 512 << 20, "512 MiB", "swap_space=512MiB"),
        ("swap_space", 3 * 10**9, "2.79 GiB", "swap_space=3GB"),
        ("swap_space", 1_000_001, "0.954 MiB", "swap_space=1000001"),
        ("swap_space", 0, "off", "swap_space=off"),
        ("chunk_size", 0, "off", "chunk_size=off"),
        ("preferred_batch_size", 0, "max_num_seqs", "preferred_batch_size=0"),
        ("max_num_seqs", 1024, "1024", "max_num_seqs=1024"),
        ("gpu_memory_utilization", 0.9, "0.9", "gpu_memory_utilization=0.9"),
        ("retried_first", True, "true", "retried_first=true"),
        ("policy", "sjf", "sjf", "policy=sjf"),
    ],
)
def test_a_setting_is_written_with_its_unit(name, value, readable, argument):
    assert setting_text(name, value) == readable
    assert assignment(name, value) == argument


@given(st.integers(1, 1 << 44))
def test_a_size_in_a_command_is_exact(size):
    text = assignment("swap_space", size).removeprefix("swap_space=")
    number = text.rstrip("kMGKiB")
    assert int(number) * BYTES.get(text[len(number) :], 1) == size


@given(st.integers(1, 10**10))
def test_a_time_in_a_command_is_exact_to_the_microsecond(microseconds):
    seconds = microseconds / 1e6
    assert float(assignment("aging", seconds).removeprefix("aging=").removesuffix("s")) == seconds


def test_short_reports_show_the_usual_settings_and_those_that_were_changed():
    assert sorted(short_names([ENGINE_DEFAULTS])) == sorted(USUAL)
    changed = ENGINE_DEFAULTS | {"aging": 3.0}
    assert sorted(short_names([ENGINE_DEFAULTS, changed])) == sorted([*USUAL, "aging"])


def test_a_command_names_the_tuned_settings_and_those_that_were_changed():
    tuned = ["max_num_seqs=256", "max_num_batched_tokens=2048", "chunk_size=off", "gpu_memory_utilization=0.9"]
    assert sorted(assignments(ENGINE_DEFAULTS)) == sorted(tuned)
    changed = ENGINE_DEFAULTS | {"swap_space": 1 << 30, "preemption_mode": "swap"}
    assert sorted(assignments(changed)) == sorted([*tuned, "swap_space=1GiB", "preemption_mode=swap"])
    command = bench_command({"model": {"name": "m"}}, changed, 2.0)
    assert "--set preemption_mode=swap" in command.text
    assert "block_size" not in command.text


def test_settings_that_vllm_lacks_are_named_beside_its_flags():
    plain = vllm_flags(ENGINE_DEFAULTS, {})
    assert plain.label == "These settings as vLLM flags"
    settings = ENGINE_DEFAULTS | {"policy": "sjf", "aging": 4.0, "swap_space": 1 << 30, "enable_prefix_caching": False}
    without = vllm_flags(settings, {})
    assert without.label == "These settings as vLLM flags, without policy, aging, swap_space: vLLM has no flag for that"
    assert "--scheduling-policy" not in without.text
    assert "--no-enable-prefix-caching" in without.text
    assert "--scheduling-policy priority" in vllm_flags(ENGINE_DEFAULTS | {"policy": "priority"}, {}).text


def test_the_engines_own_options_are_in_both_commands_where_they_are_not_the_default():
    model = {"name": "m", "dtype": "bfloat16", "kv_cache_dtype": "fp8"}
    device = {"name": "L4", "data_parallel_size": 2, "router": "least_kv", "enforce_eager": True}
    ours = bench_command({"model": model, "device": device}, ENGINE_DEFAULTS, 2.0).text
    for words in ("--kv-cache-dtype fp8", "--data-parallel-size 2", "--router least_kv", "--eager"):
        assert words in ours
    theirs = vllm_flags(ENGINE_DEFAULTS, {"model": model, "device": device}).text
    assert "--kv-cache-dtype fp8" in theirs
    assert "--data-parallel-size 2" in theirs
    assert "--router" not in theirs
