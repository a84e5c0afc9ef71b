"""The torch executor's own duties: devices, types, memory, allocation and errors."""

from typing import Any

import pytest
import torch

from engine.errors import OutOfDeviceMemory, UserError
from engine.executor import device as device_module
from engine.executor.device import memory_errors_translated, resolve_device, resolve_dtype
from engine.executor.input_batch import build_input_batch
from engine.executor.memory import default_cpu_total, largest_step, peak_bytes_cpu
from engine.executor.torch_executor import TorchExecutor
from engine.model.arch import ModelArch
from engine.model.resolve import ModelSource
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest, StepPlan

ARCH = ModelArch(
    name="tiny",
    family="llama",
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=300,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)
SOURCE = ModelSource("random:tiny", ARCH, "random", None, pretrained=False, note=None, checkpoint_dtype="bfloat16")


def load(**options: Any) -> TorchExecutor:
    return TorchExecutor.load(SOURCE, **options)


def share(token_ids: list[int], computed: int, count: int, blocks: list[int], samples: bool = True) -> ScheduledRequest:
    request = Request("a", token_ids, SamplingParams(temperature=0))
    request.block_table = blocks
    return ScheduledRequest(request, computed, count, samples, count == 1)


def test_what_is_loaded_is_told() -> None:
    executor = load(device_memory_bytes=1 << 30)
    assert (executor.dtype, executor.vocab_size, executor.max_model_len) == ("float32", 300, 256)
    assert executor.eos_token_ids == (2,)
    assert not executor.simulated
    assert executor.device_name.startswith("CPU (")
    assert executor.num_parameters == ARCH.num_parameters
    # The output layer has a copy in panels, which zeros fill up; the rotary table counts too.
    assert 0 <= executor.weights_bytes - 4 * ARCH.num_parameters <= 4 * (300 + 20) * 32 + 256 * 8 * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device 'tpu' is not possible: choose cpu, cuda or cuda:N"),
        ({"device": "cuda:x"}, "device 'cuda:x' is not possible"),
        ({"device": "cuda:"}, "device 'cuda:' is not possible"),
        ({"device": "cuda:97"}, "device 'cuda:97' is not there"),
        ({"dtype": "int4"}, "dtype='int4' is not possible: choose one of auto, float32"),
        ({"max_model_len": 1000}, "max_model_len=1000 is not possible: random:tiny takes from 2 to 256 tokens"),
        ({"max_model_len": 1}, "max_model_len=1 is not possible"),
        ({"attention_backend": "warp"}, "attention backend 'warp' does not exist"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refusal:
        load(**options)
    assert message in str(refusal.value)


def test_the_automatic_type_is_float32_on_the_cpu_and_16_bit_elsewhere() -> None:
    cuda = torch.device("cuda")
    assert resolve_dtype("auto", resolve_device("cpu"), "bfloat16") is torch.float32
    assert resolve_dtype("auto", cuda, "float16") is torch.float16
    assert resolve_dtype("auto", cuda, "float32") is torch.bfloat16
    assert resolve_dtype("float16", cuda, "bfloat16") is torch.float16


def test_a_block_takes_what_its_tensors_take() -> None:
    executor = load(dtype="bfloat16")
    executor.allocate_kv(6, 4)
    kv = executor._kv
    assert kv is not None
    assert kv.keys.nbytes + kv.values.nbytes == 6 * executor.kv_bytes_per_block(4)
    assert kv.keys.dtype is torch.bfloat16


def test_the_cache_is_kept_unless_its_shape_changes() -> None:
    executor = load()
    executor.allocate_kv(6, 4)
    first = executor._kv
    executor.allocate_kv(6, 4)
    assert executor._kv is first
    executor.allocate_kv(6, 8)
    assert executor._kv is not first


def test_a_step_needs_a_cache_and_an_empty_one_does_nothing() -> None:
    executor = load()
    assert executor.execute(StepPlan()).token_ids == []
    with pytest.raises(RuntimeError, match="allocate_kv"):
        executor.execute(StepPlan([share([1, 2], 0, 2, [0])]))


def test_tokens_come_for_those_who_sample_in_the_plans_order() -> None:
    executor = load()
    executor.allocate_kv(12, 4)
    prompts = [[5, 6, 7, 8, 9], [10], [11, 12, 13], [14, 15]]
    shares = [share(prompt, 0, len(prompt), [3 * i, 3 * i + 1]) for i, prompt in enumerate(prompts)]
    alone = [executor.execute(StepPlan([one])).token_ids for one in shares]
    assert all(len(tokens) == 1 for tokens in alone)
    assert executor.execute(StepPlan(shares)).token_ids == [tokens[0] for tokens in alone]
    silent = share(prompts[0], 0, 3, [0, 1], samples=False)
    assert executor.execute(StepPlan([silent, shares[2]])).token_ids == alone[2]
    assert executor.execute(StepPlan([silent])).token_ids == []


def test_the_batch_puts_single_tokens_first_and_longest_context_foremost() -> None:
    shares = [
        share(list(range(9)), 2, 7, [4, 5, 6]),
        share(list(range(20, 26)), 5, 1, [7, 8]),
        share(list(range(40, 52)), 11, 1, [0, 1, 2]),
        share([60], 0, 1, [9], samples=False),
    ]
    batch = build_input_batch(shares, 4)
    assert batch.token_ids.tolist() == [51, 25, 60, 2, 3, 4, 5, 6, 7, 8]
    assert batch.positions.tolist() == [11, 5, 0, 2, 3, 4, 5, 6, 7, 8]
    assert batch.sample_rows.tolist() == [9, 1, 0]
    assert batch.sampled == [shares[0].request, shares[1].request, shares[2].request]
    attention = batch.attention
    assert attention.num_decodes == 3
    assert attention.query_starts.tolist() == [0, 1, 2, 3, 10]
    assert attention.context_lens.tolist() == [12, 6, 1, 9]
    assert attention.slot_mapping.tolist() == [11, 33, 36, 18, 19, 20, 21, 22, 23, 24]
    assert attention.opened_blocks.tolist() == [9, 5, 6]


@pytest.mark.parametrize(("tokens", "seats"), [(1, 1), (2, 8), (64, 4), (300, 256), (2048, 256), (700, 700)])
def test_the_measured_step_has_the_asked_size(tokens: int, seats: int) -> None:
    scheduled = largest_step(tokens, seats, 256)
    assert sum(s.num_tokens for s in scheduled) == tokens
    assert len(scheduled) == min(tokens, seats)
    assert all(s.num_computed + s.num_tokens <= 256 and s.samples for s in scheduled)


def test_the_measured_step_has_no_more_than_its_seats_can_hold() -> None:
    scheduled = largest_step(5000, 3, 300)
    assert sorted(s.num_tokens for s in scheduled) == [256, 300, 300]


def test_profiling_is_remembered_and_grows_with_the_step() -> None:
    executor = load(device_memory_bytes=1 << 30)
    small, large = executor.profile_memory(64, 4), executor.profile_memory(1024, 16)
    assert executor.profile_memory(64, 4) is small
    assert small.total == 1 << 30
    assert small.weights == executor.weights_bytes
    assert 0 < small.peak_activation < large.peak_activation
    # At least the widest activation of one layer and its gated half.
    assert large.peak_activation > 1024 * (2 * 64 + 64) * 4


def test_the_peak_is_what_was_held_at_once() -> None:
    def step() -> None:
        for _ in range(3):
            first = torch.empty(1000, dtype=torch.float32)
            del first
            second, third = torch.empty(1000), torch.empty(500)
            del second, third

    assert 6000 <= peak_bytes_cpu(step) < 8000


def test_the_cpus_total_fits_the_machine() -> None:
    assert default_cpu_total(1 << 30, 100 << 30) == 4 << 30
    assert default_cpu_total(10 << 30, 100 << 30) == 20 << 30
    assert default_cpu_total(1 << 30, 2 << 30) == int(0.8 * (2 << 30))


def test_available_memory_is_bounded_by_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/sys/fs/cgroup/memory.max": ["3000"], "/sys/fs/cgroup/memory.current": ["1000"]}
    monkeypatch.setattr(device_module, "_lines", lambda path: files.get(path, []))
    assert device_module.available_host_bytes() == 2000
    # Cached files make way.
    files["/sys/fs/cgroup/memory.stat"] = ["anon 500", "inactive_file 400", "active_file 100"]
    assert device_module.available_host_bytes() == 2400


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_every_lack_of_memory_becomes_one_error(error: Exception) -> None:
    expected = pytest.raises(OutOfDeviceMemory, match="cpu ran out of memory while testing")
    with expected, memory_errors_translated(torch.device("cpu"), "testing"):
        raise error


def test_other_errors_pass_unchanged() -> None:
    expected = pytest.raises(RuntimeError, match="something else")
    with expected, memory_errors_translated(torch.device("cpu"), "testing"):
        raise RuntimeError("something else")


def test_memory_of_a_failed_step_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = load()
    executor.allocate_kv(4, 4)
    freed: list[bool] = []

    class Held:
        def __del__(self) -> None:
            freed.append(True)

    def fail(*_args: object) -> None:
        held = Held()
        raise MemoryError(f"no room beside {held}")

    monkeypatch.setattr(executor._attention, "begin_step", fail)
    with pytest.raises(OutOfDeviceMemory, match="running a step of 2 tokens for 1 requests"):
        executor.execute(StepPlan([share([1, 2], 0, 2, [0])]))
    assert freed == [True]


def test_a_cache_that_does_not_fit_is_an_error_of_memory() -> None:
    executor = load()
    with pytest.raises(OutOfDeviceMemory, match="KV blocks of 16 tokens"):
        executor.allocate_kv(1 << 50, 16)


def test_shutdown_gives_the_weights_back() -> None:
    executor = load()
    executor.allocate_kv(4, 4, 2)
    executor.shutdown()
    assert executor._kv is executor._swap is None
    assert not hasattr(executor, "_decoder")
