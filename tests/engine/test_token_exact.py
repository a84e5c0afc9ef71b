"""Greedy output is that of transformers' `generate`, token for token, and no setting changes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.input_batch import build_input_batch
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from engine.scheduler.plan import ScheduledRequest

OUTPUT_TOKENS = 64
PROMPT_LENGTHS = (5, 40, 17, 1, 23, 64)
SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=24),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=16),
}


class Case:
    """A tiny model under test, prompts, and what transformers answers to them."""

    def __init__(self, family: str, folder: Path) -> None:
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32).eval()
        model.save_pretrained(folder)
        model.generation_config.eos_token_id = None
        generator = torch.Generator().manual_seed(8)
        self.prompts = [torch.randint(3, 211, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]
        self.expected = [generate(model, prompt) for prompt in self.prompts]
        self.executor = TorchExecutor.load(resolve_model(str(folder)), device_memory_bytes=1 << 30)


def generate(model: Any, prompt: list[int]) -> list[int]:
    with torch.no_grad():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=OUTPUT_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("llama", tmp_path_factory.mktemp("llama"))


def greedy(**options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True, **options})


def run(engine: Engine, abort: tuple[int, str] | None = None) -> tuple[dict[str, list[int]], int]:
    """Run until idle; returns tokens by request and the number of preemptions. `abort` is (step, request id)."""
    tokens: dict[str, list[int]] = {}
    preemptions = step = 0
    while engine.has_work:
        if abort is not None and step == abort[0]:
            assert engine.abort(abort[1])
        events, record = engine.step()
        preemptions += record.preemptions_recompute + record.preemptions_swap
        step += 1
        for event in events:
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    return tokens, preemptions


def make_engine(
    case: Case,
    *,
    blocks: int = 400,
    block_size: int = 16,
    prefix: bool = True,
    swap_space: int = 1 << 20,
    **options: Any,
) -> Engine:
    cache = CacheConfig(
        block_size=block_size,
        enable_prefix_caching=prefix,
        num_gpu_blocks_override=blocks,
        swap_space=swap_space,
    )
    return Engine(case.executor, SchedulerConfig(**options), cache)


def add_all(engine: Engine, case: Case, **options: Any) -> None:
    for index, prompt in enumerate(case.prompts):
        engine.add_request(Request(str(index), prompt, greedy(**options)))


def by_index(tokens: dict[str, list[int]], count: int) -> list[list[int]]:
    return [tokens[str(index)] for index in range(count)]


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_answers_like_transformers(tmp_path: Path, family: str) -> None:
    case = Case(family, tmp_path)
    engine = make_engine(case, max_num_batched_tokens=64, chunk_size=13, block_size=4)
    add_all(engine, case)
    assert by_index(run(engine)[0], 6) == case.expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 2, "max_num_batched_tokens": 7},
        {"max_num_batched_tokens": 1},
        {"chunk_size": 3},
        {"chunk_size": 16, "block_size": 1, "blocks": 2000},
        {"block_size": 5, "max_num_batched_tokens": 50},
        {"block_size": 64, "prefix": False},
    ],
    ids=str,
)
def test_no_setting_changes_a_token(case: Case, options: dict[str, Any]) -> None:
    engine = make_engine(case, **options)
    add_all(engine, case)
    assert by_index(run(engine)[0], 6) == case.expected


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("chunk_size", [0, 9])
def test_preemptions_change_no_token(case: Case, prefix: bool, chunk_size: int) -> None:
    engine = make_engine(case, blocks=36, block_size=4, prefix=prefix, chunk_size=chunk_size)
    add_all(engine, case)
    tokens, preemptions = run(engine)
    assert preemptions > 0
    assert by_index(tokens, 6) == case.expected


@pytest.mark.parametrize("swap_space", [8 << 10, 1 << 20])
@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_preemptions_by_swap_change_no_token(case: Case, mode: str, prefix: bool, swap_space: int) -> None:
    """With the small swap space some victims find no room and are computed again."""
    engine = make_engine(
        case, blocks=36, block_size=4, prefix=prefix, chunk_size=9, preemption_mode=mode, swap_space=swap_space
    )
    engine.scheduler.preemption_cost.swap_is_cheaper = lambda num_tokens, num_blocks: num_tokens % 2 == 0  # type: ignore[method-assign]
    add_all(engine, case)
    kinds = {"recompute": 0, "swap": 0}
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        events, record = engine.step()
        kinds["recompute"] += record.preemptions_recompute
        kinds["swap"] += record.preemptions_swap
        assert record.swapped_out_bytes == record.swapped_out_blocks * case.executor.kv_bytes_per_block(4)
        for event in events:
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    assert kinds["swap"] > 0
    assert (kinds["recompute"] == 0) == (mode == "swap" and swap_space > 8 << 10)
    assert by_index(tokens, 6) == case.expected


@pytest.mark.parametrize("batching", ["static", "dynamic"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_batches_that_leave_together_change_no_token(case: Case, batching: str, mode: str) -> None:
    engine = make_engine(
        case,
        blocks=40,
        block_size=4,
        batching=batching,
        preemption_mode=mode,
        max_num_batched_tokens=50,
        max_num_seqs=4,
    )
    add_all(engine, case)
    tokens, preemptions = run(engine)
    assert preemptions > 0
    assert by_index(tokens, 6) == case.expected


@pytest.mark.parametrize("policy", ["sjf", "priority", "tiered"])
def test_no_policy_and_no_victim_change_a_token(case: Case, policy: str) -> None:
    engine = make_engine(case, blocks=36, block_size=4, policy=policy, preemption_victim="fewest_tokens", aging=1.0)
    for index, prompt in enumerate(case.prompts):
        engine.add_request(Request(str(index), prompt, greedy(), priority=index % 3))
    tokens, preemptions = run(engine)
    assert preemptions > 0
    assert by_index(tokens, 6) == case.expected


def test_prefix_hits_change_no_token(case: Case) -> None:
    engine = make_engine(case, block_size=4)
    add_all(engine, case)
    run(engine)
    add_all(engine, case)
    tokens: dict[str, list[int]] = {}
    cached = 0
    while engine.has_work:
        events, record = engine.step()
        cached += record.cached_tokens
        for event in events:
            tokens.setdefault(event.request_id, []).extend(event.token_ids)
    assert cached > sum(PROMPT_LENGTHS) // 2
    assert by_index(tokens, 6) == case.expected


def test_equal_prompts_in_one_step_share_blocks_and_tokens(case: Case) -> None:
    engine = make_engine(case, block_size=4)
    for name in "abc":
        engine.add_request(Request(name, case.prompts[1], greedy()))
    tokens, _ = run(engine)
    assert [tokens[name] for name in "abc"] == [case.expected[1]] * 3


def test_an_aborted_neighbour_changes_no_token(case: Case) -> None:
    engine = make_engine(case, block_size=4, chunk_size=8)
    add_all(engine, case)
    tokens, _ = run(engine, abort=(11, "4"))
    assert len(tokens.pop("4")) < OUTPUT_TOKENS
    assert [tokens[str(i)] for i in (0, 1, 2, 3, 5)] == [case.expected[i] for i in (0, 1, 2, 3, 5)]


def test_a_seed_gives_the_same_tokens_through_chunks_neighbours_and_preemptions(case: Case) -> None:
    sampling = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 5}
    alone = []
    for index, prompt in enumerate(case.prompts):
        engine = make_engine(case)
        engine.add_request(Request(str(index), prompt, greedy(**sampling)))
        alone.append(run(engine)[0][str(index)])
    assert alone != case.expected
    engine = make_engine(case, blocks=36, block_size=4, chunk_size=9)
    add_all(engine, case, **sampling)
    tokens, preemptions = run(engine)
    assert preemptions > 0
    assert by_index(tokens, 6) == alone


def prompt_logits(executor: TorchExecutor, prompt: list[int]) -> torch.Tensor:
    """Logits of every row of a prompt, `[tokens, vocab]`."""
    request = Request("logits", prompt, greedy())
    request.block_table = [0]
    executor.allocate_kv(1, len(prompt))
    assert executor._kv is not None
    batch = build_input_batch([ScheduledRequest(request, 0, len(prompt), True, False)], len(prompt))
    token_ids, positions, _ = batch.to(torch.device("cpu"), None)
    with torch.inference_mode():
        step = executor._attention.begin_step(batch.attention, executor._kv)
        return executor._decoder.forward(token_ids, positions, step, torch.arange(len(prompt)))


def test_the_real_model_agrees_with_transformers_and_knows_paris(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    reference = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()
    prompt = tokenizer("The capital of France is").input_ids
    with torch.no_grad():
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0].tolist()
        expected_logits = reference(torch.tensor([prompt])).logits[0]
    executor = TorchExecutor.load(resolve_model(str(smollm2)), max_model_len=512)
    torch.testing.assert_close(prompt_logits(executor, prompt), expected_logits, atol=1e-3, rtol=1e-3)
    engine = Engine(executor, SchedulerConfig(), CacheConfig(num_gpu_blocks_override=32))
    engine.add_request(Request("a", prompt, greedy(max_tokens=12)))
    tokens = run(engine)[0]["a"]
    assert "Paris" in tokenizer.decode(tokens)
    assert tokens == expected[len(prompt) :]
