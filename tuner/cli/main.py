"""`tune`: the command line. Starts fast: everything heavy is imported inside the command that needs it."""

import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn, Optional

import typer

from engine.config import MAX_CUDAGRAPH_CAPTURE_SIZE
from engine.errors import OutOfDeviceMemory, RankFailed, ReplicaFailed, UserError
from engine.executor.before_torch import prepare_process
from engine.parallel.router import DEFAULT_ROUTER
from tuner.baseline import DEFAULT_STORE
from tuner.cli import commands
from tuner.cli import options as opt
from tuner.cli.baseline import baseline as baselines
from tuner.cli.ci import ci
from tuner.cli.diff import diff
from tuner.cli.serve import serve
from tuner.cli.twin import twin

app = typer.Typer(
    name="tune",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tuner.environment import tool_version

        typer.echo(f"tune {tool_version()}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def tune(
    context: typer.Context,
    slo: opt.Slo = None,
    goodput: opt.Goodput = None,
    workload: opt.Workload = None,
    arrival: opt.Arrival = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    rate: Annotated[
        str,
        typer.Option(
            help="Requests per second, or auto: the highest rate that each setting holds within the SLO.",
            rich_help_panel="What is asked of the engine",
        ),
    ] = "auto",
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
    search: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--search",
            metavar="NAME=RANGE",
            help="Search NAME=low..high or NAME=a,b,c, in place of the default range or beside it: any of "
            "'tune settings'. A --set value is where such a search starts from.",
            rich_help_panel="The search",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="NAME,...",
            help="What to make best within the SLO: goodput, output_throughput, request_throughput, or mean, p50, p90, "
            "p95 or p99 of ttft, tpot, itl or e2e, such as p95_ttft. Several give the front of settings of which none "
            "is better in all. Others than goodput alone need --rate R or a closed loop.",
            rich_help_panel="The search",
            show_default="goodput",
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What proposes the settings to measure: twin (the most promising of many that are played on a twin of "
            "the engine, learnt from the runs so far), tpe, gp, cmaes, nsga2, qmc, random, grid (all combinations of a "
            "few levels), or staged (memory, then seats and token budget, then chunking).",
            rich_help_panel="The search",
            show_default="twin",
        ),
    ] = "auto",
    warm_start: opt.WarmStart = None,
    baseline: opt.Baseline = None,
    store: opt.Store = DEFAULT_STORE,
    budget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Wall time for everything after loading, e.g. 20m.",
            rich_help_panel="The search",
            show_default="9m, unless --trials is given",
        ),
    ] = None,
    trials: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            help="Most settings to try beside the default.",
            rich_help_panel="The search",
            show_default="no limit; 40 when simulated",
        ),
    ] = None,
    window: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            help="Measured part of each run.",
            rich_help_panel="The run",
            show_default="budget / 27, from 10s to 60s",
        ),
    ] = None,
    warmup: opt.Warmup = None,
    drain_timeout: opt.DrainTimeout = "60s",
    seed: opt.Seed = 0,
    out: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Folder of the study.", rich_help_panel="The run", show_default="runs/DATE-WORKLOAD"),
    ] = None,
    resume: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="DIR",
            help="Go on with an interrupted study; its own options apply, --budget and --trials may raise its limits.",
            rich_help_panel="The run",
            show_default=False,
        ),
    ] = None,
    json_: opt.Json = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find the scheduler settings under which an LLM serving engine delivers the most goodput within an SLO.

    [bold]tune --slo p95_ttft=1s[/bold] measures the default settings, searches better ones,
    and measures the winner again beside the default.

    Exit code: 0 done, 1 no setting met the SLO, 2 bad input, 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return
    if slo is None and goodput is None and resume is None:
        typer.echo(context.get_help())
        raise typer.Exit(2 if len(sys.argv) > 1 else 0)
    from tuner.cli.tune import run_study

    raise typer.Exit(run_study(opt.arguments_of(context), out=out, resume=resume, as_json=json_))


_MEASURING = (commands.bench, commands.profile, commands.compare)
for command in (*_MEASURING, diff, ci, commands.settings, commands.report, serve):
    app.command()(command)
app.add_typer(twin)
app.add_typer(baselines)


def gather_goodput(arguments: Sequence[str]) -> list[str]:
    """Repeat `--goodput` before each of its values: other tools take several after one, click takes one each.

    Example:
        >>> gather_goodput(["--goodput", "ttft:1000", "tpot:50", "--seed", "1"])
        ['--goodput', 'ttft:1000', '--goodput', 'tpot:50', '--seed', '1']
    """
    gathered: list[str] = []
    inside = False
    for argument in arguments:
        if argument == "--goodput":
            inside = True
        elif inside and ":" in argument and not argument.startswith("-"):
            gathered += ["--goodput", argument]
        else:
            if inside and gathered[-2:-1] != ["--goodput"]:
                gathered.append("--goodput")
            inside = False
            gathered.append(argument)
    if inside and gathered[-2:-1] != ["--goodput"]:
        gathered.append("--goodput")
    return gathered


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code: 2 and one sentence for anything the user can mend."""
    prepare_process()
    if arguments is not None:
        sys.argv = ["tune", *arguments]
    # A terminated run is stored like an interrupted one.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(args=gather_goodput(sys.argv[1:]))
    except (UserError, OutOfDeviceMemory, RankFailed, ReplicaFailed) as error:
        _complain(str(error))
    except Exception:
        if sys.argv[1:2] not in (["diff"], ["ci"]):
            raise
        # Python would end with 1, which of these two commands says that something got worse. It is a bug of the tool,
        # and is shown like any other.
        traceback.print_exc()
        sys.exit(2)


def _complain(text: str) -> NoReturn:
    from rich.console import Console

    Console(stderr=True).print(f"error: {text}", markup=False, highlight=False, soft_wrap=True, style="red")
    sys.exit(2)


if __name__ == "__main__":
    main()
