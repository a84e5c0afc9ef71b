"""How much each part measures: on a card, and in a dry run on the CPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelShape:
    """Attention of one model shape, over a cache of one block size.

    Attributes:
        window: of sliding attention; None for all.
        kv_cache_dtype: as in `ModelConfig`.
    """

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    window: int | None = None
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class OfflineLoad:
    """A batch of requests that are all there at the start, and the limits that it is served under.

    Attributes:
        requests: how many.
        shortest, longest: tokens of a prompt and of an answer, drawn evenly between them.
    """

    requests: int
    shortest: int
    longest: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What every part needs to know.

    Attributes:
        device, dtype, attention_backend: as the engine's options.
        kernel_dtype: number type of the kernels that are checked.
        kernel_shapes: attention shapes to check.
        kernel_steps: steps to check them with, each as (tokens computed before, tokens of this step) per request.
        model_step: likewise, for every tile shape of the two models.
        model, small_model: the first is what the goals are for.
        repeats: measurements of each figure; their median counts.
        seconds: length of one measurement of a ceiling.
        copy_bytes: sizes of a buffer that is copied.
        products: matrix products, as rows, columns and inner length.
        decode_batches, decode_context: requests, and tokens that each attends to.
        decode_steps: steps of one measurement.
        warmup_steps: steps before the first, in which graphs are captured and clocks come up.
        prefill_tokens: lengths of a prompt.
        max_num_batched_tokens: while prompts are filled for a decode.
        host_batches, host_context, host_steps: as for decode, where the host's time is looked at.
        offline, offline_repeats: the batch of the throughput measurement.
        tune_arguments: of the study.
    """

    device: str
    dtype: str
    attention_backend: str
    kernel_dtype: str
    kernel_shapes: tuple[KernelShape, ...]
    kernel_steps: tuple[tuple[tuple[int, int], ...], ...]
    model_step: tuple[tuple[int, int], ...]
    model: str
    small_model: str
    repeats: int
    seconds: float
    copy_bytes: tuple[int, ...]
    products: tuple[tuple[int, int, int], ...]
    decode_batches: tuple[int, ...]
    decode_context: int
    decode_steps: int
    warmup_steps: int
    prefill_tokens: tuple[int, ...]
    max_num_batched_tokens: int
    host_batches: tuple[int, ...]
    host_context: int
    host_steps: int
    offline: OfflineLoad
    offline_repeats: int
    tune_arguments: tuple[str, ...]


# Decodes short and long enough to be split, a fresh prompt, a chunk with context, a chunk of two.
_MIXED = ((0, 1), (15, 1), (333, 1), (0, 37), (70, 9), (5, 2))
_SLO = ("--slo", "p95_ttft=1s,p95_tpot=50ms")

FULL = Sizes(
    device="cuda",
    dtype="auto",
    attention_backend="auto",
    kernel_dtype="bfloat16",
    kernel_shapes=(
        KernelShape(2, 2, 64, 8),
        KernelShape(6, 2, 96, 16),
        KernelShape(16, 1, 64, 256),
        KernelShape(4, 1, 256, 24),
        KernelShape(5, 1, 96, 64),
        KernelShape(8, 1, 128, 8),
        KernelShape(4, 2, 64, 16, window=40),
        KernelShape(8, 1, 128, 16, kv_cache_dtype="fp8"),
        KernelShape(6, 2, 64, 16, kv_cache_dtype="float16"),
    ),
    kernel_steps=(_MIXED, ((2300, 1),)),
    model_step=((5000, 1), *((1023, 1),) * 20, (0, 1), (0, 700), (900, 300), (2000, 2)),
    model="random:qwen2.5-7b",
    small_model="random:qwen3-0.6b",
    repeats=5,
    seconds=0.15,
    copy_bytes=(256 << 20, 1 << 30, 4 << 30),
    # Squares, and the gate and up projections of the larger model for 8k tokens.
    products=((4096,) * 3, (8192,) * 3, (16384,) * 3, (8192, 37888, 3584)),
    decode_batches=(1, 32, 128, 256),
    decode_context=1024,
    decode_steps=32,
    warmup_steps=16,
    prefill_tokens=(2048, 8192),
    max_num_batched_tokens=8192,
    host_batches=(1, 32, 128),
    host_context=512,
    host_steps=16,
    offline=OfflineLoad(
        requests=256, shortest=100, longest=1024, max_num_seqs=512, max_num_batched_tokens=16384, max_model_len=4096
    ),
    offline_repeats=2,
    tune_arguments=(*_SLO, "--budget", "85s", "--model", "random:qwen2.5-7b", "--warm-start", "off"),
)

DRY = Sizes(
    device="cpu",
    dtype="float32",
    attention_backend="triton",
    kernel_dtype="float16",
    kernel_shapes=(
        KernelShape(4, 2, 16, 8),
        KernelShape(3, 1, 24, 8, window=9),
        KernelShape(4, 2, 16, 8, kv_cache_dtype="fp8"),
    ),
    kernel_steps=(((0, 1), (20, 1), (0, 7), (9, 3)),),
    model_step=((20, 1), (0, 5)),
    model="random:tiny-qwen2",
    small_model="random:tiny-qwen3",
    repeats=2,
    seconds=0.01,
    copy_bytes=(1 << 20,),
    products=((64,) * 3, (32, 64, 128)),
    decode_batches=(1, 2),
    decode_context=12,
    decode_steps=1,
    warmup_steps=1,
    prefill_tokens=(4, 8),
    max_num_batched_tokens=64,
    host_batches=(1, 2),
    host_context=16,
    host_steps=2,
    offline=OfflineLoad(requests=2, shortest=2, longest=5, max_num_seqs=2, max_num_batched_tokens=16, max_model_len=64),
    offline_repeats=1,
    # On a simulated card, so that a slow machine cannot spoil it.
    tune_arguments=(
        *(*_SLO, "--trials", "1", "--window", "2s", "--output-tokens", "4", "--rate", "4", "--device", "sim:h200"),
        *("--model", "random:qwen2.5-0.5b", "--strategy", "random", "--warm-start", "off"),
    ),
)
