"""The sub-commands with their options. Each imports what it needs when it is called.

An option's value reaches the work through `options.arguments_of`, by its name.
"""

from typing import Annotated, Optional

import typer

from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE
from engine.parallel.router import DEFAULT_ROUTER
from tuner.cli import options as opt


def bench(
    context: typer.Context,
    slo: opt.Slo = None,
    goodput: opt.Goodput = None,
    rate: opt.OneRate = None,
    workload: opt.Workload = None,
    arrival: opt.Arrival = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    model: opt.Model = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    kv_cache_dtype: opt.KVCacheDtype = "auto",
    max_model_len: opt.MaxModelLen = None,
    device_memory: opt.DeviceMemory = None,
    attention_backend: opt.AttentionBackend = "auto",
    enforce_eager: opt.EnforceEager = False,
    max_cudagraph_capture_size: opt.MaxCudagraphCaptureSize = MAX_CUDAGRAPH_CAPTURE_SIZE,
    tensor_parallel_size: opt.TensorParallelSize = 1,
    data_parallel_size: opt.DataParallelSize = 1,
    router: opt.Router = DEFAULT_ROUTER,
    set_: opt.Set = None,
    window: opt.OneWindow = "30s",
    warmup: opt.Warmup = None,
    drain_timeout: opt.DrainTimeout = "60s",
    seed: opt.Seed = 0,
    out: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Folder of the run.", rich_help_panel="The run", show_default="runs/DATE-bench-WORKLOAD"),
    ] = None,
    json_: opt.Json = False,
) -> None:
    """Measure one setting once."""
    from tuner.cli.bench import run_bench

    raise typer.Exit(run_bench(opt.arguments_of(context), out=out, as_json=json_))


def profile(
    context: typer.Context,
    slo: opt.Slo = None,
    goodput: opt.Goodput = None,
    rate: opt.OneRate = None,
    workload: opt.Workload = None,
    arrival: opt.Arrival = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    model: opt.Model = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    kv_cache_dtype: opt.KVCacheDtype = "auto",
    max_model_len: opt.MaxModelLen = None,
    device_memory: opt.DeviceMemory = None,
    attention_backend: opt.AttentionBackend = "auto",
    enforce_eager: opt.EnforceEager = False,
    max_cudagraph_capture_size: opt.MaxCudagraphCaptureSize = MAX_CUDAGRAPH_CAPTURE_SIZE,
    tensor_parallel_size: opt.TensorParallelSize = 1,
    data_parallel_size: opt.DataParallelSize = 1,
    router: opt.Router = DEFAULT_ROUTER,
    set_: opt.Set = None,
    profile_time: Annotated[
        str,
        typer.Option(help="How long to note what the host does, and then to trace.", rich_help_panel="The run"),
    ] = "3s",
    window: opt.OneWindow = "30s",
    warmup: opt.Warmup = None,
    drain_timeout: opt.DrainTimeout = "60s",
    seed: opt.Seed = 0,
    out: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Folder of the run.", rich_help_panel="The run", show_default="runs/DATE-profile-WORKLOAD"),
    ] = None,
) -> None:
    """Measure one setting once, with a look inside its steps: trace.json.gz and a table of the host's time."""
    from tuner.cli.profile import run_profile

    raise typer.Exit(run_profile(opt.arguments_of(context), profile_time=profile_time, out=out))


def compare(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="SETTING[=A,B,...]",
            help="The setting, such as batching for all values it has, or with values: policy=fcfs,sjf.",
            show_default=False,
        ),
    ],
    slo: opt.Slo = None,
    goodput: opt.Goodput = None,
    rate: opt.OneRate = None,
    workload: opt.Workload = None,
    arrival: opt.Arrival = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    model: opt.Model = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    kv_cache_dtype: opt.KVCacheDtype = "auto",
    max_model_len: opt.MaxModelLen = None,
    device_memory: opt.DeviceMemory = None,
    attention_backend: opt.AttentionBackend = "auto",
    enforce_eager: opt.EnforceEager = False,
    max_cudagraph_capture_size: opt.MaxCudagraphCaptureSize = MAX_CUDAGRAPH_CAPTURE_SIZE,
    tensor_parallel_size: opt.TensorParallelSize = 1,
    data_parallel_size: opt.DataParallelSize = 1,
    router: opt.Router = DEFAULT_ROUTER,
    set_: opt.Set = None,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Runs per value, each with further seeds.", rich_help_panel="The run"),
    ] = 1,
    window: opt.OneWindow = "30s",
    warmup: opt.Warmup = None,
    drain_timeout: opt.DrainTimeout = "60s",
    seed: opt.Seed = 0,
    out: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Folder of the comparison.",
            rich_help_panel="The run",
            show_default="runs/DATE-compare-SETTING-WORKLOAD",
        ),
    ] = None,
    json_: opt.Json = False,
) -> None:
    """Measure one workload under several values of one setting, side by side.

    [bold]tune compare batching --rate 4[/bold] measures continuous, static and dynamic batching
    with the same requests at the same times.

    Exit code: 0 done, 1 a value could not be measured, 2 bad input, 130 interrupted.
    """
    from tuner.cli.compare import run_compare

    raise typer.Exit(run_compare(opt.arguments_of(context), what, repeats=repeats, out=out, as_json=json_))


def settings() -> None:
    """List every setting: what it means, its values, and what vLLM calls it."""
    from tuner.cli.settings import print_settings

    print_settings()


def report(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of a run, a study or a comparison.")],
) -> None:
    """Write report.html and report.md again from what is stored."""
    from pathlib import Path

    from reports.build import write_reports
    from tuner.cli.output import print_summary

    path = Path(folder)
    files = write_reports(path)
    print_summary(path)
    for file in files:
        typer.echo(str(file))
