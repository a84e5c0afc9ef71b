"""Options that several commands share, each with the text that `--help` shows. Imports nothing heavy."""

from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from tuner.arguments import TuneArguments

_LOAD, _ENGINE, _RUN, _SEARCH = "What is asked of the engine", "The engine", "The run", "The search"

Slo = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads the annotation at run time)
    typer.Option(
        "--slo",
        help="Objective, e.g. p95_ttft=1s,p95_tpot=60ms. pNN_, mean_ or max_ + ttft, tpot, itl, e2e or queue.",
        rich_help_panel=_LOAD,
        show_default=False,
    ),
]
Goodput = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--goodput",
        metavar="METRIC:MS...",
        help="The same in other tools' form: --goodput ttft:1000 tpot:50 (milliseconds, for 95 % of the requests).",
        rich_help_panel=_LOAD,
        show_default=False,
    ),
]
Workload = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="chat, chat-small, summarize, mixed, mixed-small, or a YAML file.",
        rich_help_panel=_LOAD,
        show_default="chat-small on a CPU, else chat",
    ),
]
Arrival = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="In place of the workload's: poisson, gamma:burstiness=0.5, constant, spikes:..., closed:8.",
        rich_help_panel=_LOAD,
        show_default=False,
    ),
]
PromptTokens = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="In place of the workload's: 128, uniform:32..192, or lognormal:median=800,sigma=0.8,low=16,high=4000.",
        rich_help_panel=_LOAD,
        show_default=False,
    ),
]
OutputTokens = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Likewise for outputs.", rich_help_panel=_LOAD, show_default=False),
]
Model = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="A Hugging Face folder or id, a .gguf file, smollm2-135m, or random:NAME (a published shape with random "
        "weights, e.g. random:llama-3.1-8b).",
        rich_help_panel=_ENGINE,
        show_default="smollm2-135m on a CPU, else random:qwen2.5-7b",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, cuda:N, or sim:CARD (a10, l4, 4090, a100-40g, a100-80g, h100, h200, mi300x: no device "
        "runs, steps take what the card's published figures say).",
        rich_help_panel=_ENGINE,
    ),
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=_ENGINE)]
KVCacheDtype = Annotated[
    str,
    typer.Option(
        help="What keys and values are kept in: auto (as --dtype), float16, bfloat16 or fp8. Fewer bits hold more "
        "tokens, and change answers a little.",
        rich_help_panel=_ENGINE,
    ),
]
MaxModelLen = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(
        help="Longest request in tokens.",
        rich_help_panel=_ENGINE,
        show_default="the model's own, at most 8192 unless the workload needs more",
    ),
]
DeviceMemory = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        help="What counts as the device's total memory, e.g. 8GiB.",
        rich_help_panel=_ENGINE,
        show_default="the card's own; on a CPU a size that fits",
    ),
]
AttentionBackend = Annotated[
    str,
    typer.Option(help="auto (triton on a GPU, else cpu), reference, cpu or triton.", rich_help_panel=_ENGINE),
]
EnforceEager = Annotated[
    bool,
    typer.Option(
        "--eager",
        "--enforce-eager",
        help="On a GPU: neither CUDA graphs nor overlap of one step with the next.",
        rich_help_panel=_ENGINE,
    ),
]
MaxCudagraphCaptureSize = Annotated[
    int,
    typer.Option(
        min=0, help="Tokens of the largest step that is a CUDA graph; 0 for no graphs.", rich_help_panel=_ENGINE
    ),
]
TensorParallelSize = Annotated[
    int,
    typer.Option(
        min=1,
        help="Devices that share the model: cuda:0 and those after it, or parts of the CPU.",
        rich_help_panel=_ENGINE,
    ),
]
DataParallelSize = Annotated[
    int,
    typer.Option(
        min=1,
        help="Replicas of the engine: on cuda:0 and those after it, on parts of the CPU, or on simulated devices.",
        rich_help_panel=_ENGINE,
    ),
]
Router = Annotated[
    str,
    typer.Option(
        help="Which replica serves a request: round_robin, least_in_flight, least_kv (the one whose KV cache has the "
        "least to hold) or prefix_affinity (the one that was sent the same beginning, unless it is far busier).",
        rich_help_panel=_ENGINE,
    ),
]
Set = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Fix a setting, e.g. max_num_seqs=96, policy=sjf or queue_timeout=5s; 'tune settings' lists them all.",
        rich_help_panel=_ENGINE,
        show_default=False,
    ),
]
WarmStart = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--warm-start",
        metavar="auto|off|DIR",
        help="Begin with what earlier studies of this model on this device found best, and leave alone what failed "
        "there: those beside the new study, none, or a study's folder or one with several in it; may be repeated.",
        rich_help_panel=_SEARCH,
        show_default="auto",
    ),
]
Baseline = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Try the settings of this baseline first; on the same device the search learns from its runs, too.",
        rich_help_panel=_SEARCH,
        show_default=False,
    ),
]
Store = Annotated[str, typer.Option("--store", metavar="DIR", help="Folder of all baselines.")]
OneRate = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--rate", help="Requests per second; a closed loop has none.", rich_help_panel=_LOAD, show_default=False
    ),
]
OneWindow = Annotated[str, typer.Option("--window", help="Measured part of a run.", rich_help_panel=_RUN)]
Seed = Annotated[int, typer.Option(min=0, help="Of arrivals, lengths, prompts and the search.", rich_help_panel=_RUN)]
Warmup = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(help="Load before the window.", rich_help_panel=_RUN, show_default="0.4 of the window, at least 3s"),
]
DrainTimeout = Annotated[
    str, typer.Option(help="How long after the window its requests may take.", rich_help_panel=_RUN)
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON on standard output, nothing else.", rich_help_panel=_RUN),
]


def arguments_of(context: typer.Context) -> "TuneArguments":
    """What was given to a command, by the names that its options share with `TuneArguments`."""
    from dataclasses import fields

    from tuner.arguments import TuneArguments

    given = {name.rstrip("_"): value for name, value in context.params.items() if value not in (None, (), [])}
    return TuneArguments(**{f.name: given[f.name] for f in fields(TuneArguments) if f.name in given})
