"""What is counted: bytes of a decode, operations of a prefill, the published workload, the card's readings."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.torch_executor import TorchExecutor
from engine.model.presets import preset_arch
from engine.model.resolve import resolve_model
from engine.trace import IterationRecord
from scripts.gpu_proof.card import summary
from scripts.gpu_proof.decode import step_bytes
from scripts.gpu_proof.offline import PUBLISHED, make_jobs, serve_s
from scripts.gpu_proof.prefill import prompt_flops
from scripts.gpu_proof.served import idle_share, in_repeats, period_s, steady_decode
from scripts.gpu_proof.sizes import DRY, FULL
from scripts.gpu_proof.timing import Spread, seconds_per_call


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    return TorchExecutor.load(resolve_model("random:tiny"), device_memory_bytes=1 << 28, max_model_len=256)


def records(executor: TorchExecutor, **options: Any) -> list[IterationRecord]:
    return steady_decode(executor, replace(DRY, warmup_steps=3), **options)


@pytest.mark.parametrize(("batch", "context"), [(1, 20), (5, 40)])
def test_only_steps_in_which_all_decode_are_counted(executor: TorchExecutor, batch: int, context: int) -> None:
    steps = records(executor, batch=batch, context=context, steps=6)
    assert [(step.decode_seqs, step.prefill_tokens) for step in steps] == [(batch, 0)] * 6
    # Those whose prompt was filled first are a few tokens further.
    assert all(abs(step.context_tokens / batch - context) <= 10 for step in steps)


def test_a_decode_moves_every_weight_and_all_keys_and_values(executor: TorchExecutor) -> None:
    steps = records(executor, batch=2, context=30, steps=1)
    tied, untied = preset_arch("tiny"), preset_arch("tiny-mistral")
    assert not untied.tie_word_embeddings
    kv = (steps[0].context_tokens + 2) * 2 * 2 * 2 * 16 * 2  # keys and values, layers, KV heads, head size, bytes
    assert step_bytes(tied, 2, steps) == 2 * tied.num_parameters + kv
    # The table of input embeddings is not read; the output layer is, which has as many numbers.
    assert step_bytes(untied, 2, steps) == 2 * tied.num_parameters + kv


def test_operations_of_a_prompt_are_matrices_attention_and_one_row_of_logits() -> None:
    arch = preset_arch("tiny")
    matrices = 2 * 64 * (2 * 4 * 16 + 2 * 2 * 16 + 3 * 128)
    pairs = 3 * 4 // 2
    dropped = 2 * (2 * 64 * (4 * 16 + 3 * 128))  # of the last layer, for the two tokens that do not sample
    assert prompt_flops(arch, 3) == 2 * matrices * 3 - dropped + 4 * 2 * 4 * 16 * pairs + 2 * 64 * 512


def test_the_published_workload_has_its_published_number_of_tokens() -> None:
    jobs = make_jobs(FULL.offline, preset_arch("qwen3-0.6b").vocab_size)
    assert len(jobs) == 256
    assert sum(job.output_tokens for job in jobs) == PUBLISHED["output_tokens"] == 133966
    assert {100 <= len(prompt) <= 1024 for prompt, _ in jobs} == {True}


def test_no_run_finds_what_another_left_in_the_cache(executor: TorchExecutor) -> None:
    engine = Engine(executor, SchedulerConfig(max_num_batched_tokens=64), CacheConfig(num_gpu_blocks_override=40))
    jobs = make_jobs(replace(DRY.offline, shortest=20, longest=40), executor.vocab_size)
    for _ in range(2):
        assert serve_s(engine, jobs, 0.0) > 0
    engine.reset()
    assert not engine.has_work


def step(**times: Any) -> IterationRecord:
    zero = dict.fromkeys(IterationRecord.__dataclass_fields__, 0)
    return IterationRecord(**{**zero, "wait_cause": None, "blocked_request": None, "replica": None, **times})


def test_a_step_takes_its_time_on_the_device_and_the_gap_before_it() -> None:
    on_card = step(device_time_ns=8_000_000, execute_time_ns=99, gap_ns=2_000_000)
    assert period_s(on_card) == pytest.approx(0.010)
    assert idle_share([on_card, step(device_time_ns=10_000_000)]) == pytest.approx(0.1)
    assert period_s(step(device_time_ns=None, execute_time_ns=3_000_000, gap_ns=0)) == pytest.approx(0.003)


def test_repeats_are_consecutive_steps_of_equal_number() -> None:
    numbered = [step(iteration=number) for number in range(7)]
    assert [[s.iteration for s in part] for part in in_repeats(numbered, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_a_rate_is_highest_where_the_time_is_shortest() -> None:
    assert Spread.of([2.0, 4.0, 5.0]).rate(20) == Spread(5.0, 4.0, 10.0, 3)


def test_calls_are_timed_in_repeats() -> None:
    calls = []
    taken = seconds_per_call(lambda: calls.append(1), torch.device("cpu"), seconds=0.0, repeats=3)
    assert taken.repeats == 3
    assert 0 <= taken.low <= taken.median <= taken.high
    # One for warm-up, one to see how long it takes, then a measurement that does not count and three that do.
    assert len(calls) == 6


def test_readings_are_summed_up_and_what_the_card_does_not_tell_is_null() -> None:
    first: dict[str, float | None] = {"power_w": 100.0, "throttle_reasons": 4, "temperature_c": None}
    second: dict[str, float | None] = {"power_w": 300.0, "throttle_reasons": 1, "temperature_c": None}
    assert summary([first, second]) == {
        "power_w": {"low": 100.0, "median": 200.0, "high": 300.0},
        "throttle_reasons": "0x5",
        "temperature_c": None,
    }
