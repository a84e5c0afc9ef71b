"""`tune baseline`: what was measured, kept under a name to hold later changes against."""

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from tuner.baseline import DEFAULT_STORE
from tuner.cli import options as opt

if TYPE_CHECKING:
    from tuner.progress import ProgressDisplay

baseline = typer.Typer(
    name="baseline",
    help="Keep settings with what was measured of them, to hold later changes against: tune diff and tune ci.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What was to be done could not be: like bad input, and unlike 1, which tells a gate of a regression.
NOTHING_ADDED = 2

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the baseline.", show_default=False)]
Repeats = Annotated[
    Optional[int],  # noqa: UP045  (typer reads the annotation at run time)
    typer.Option(
        "--repeats",
        min=0,
        help="How often each of its seeds is measured again, to know how much equal runs differ.",
        show_default="enough for 4 degrees of freedom; none where there are repeats already, or when simulated",
    ),
]


@baseline.command()
def save(
    name: Name,
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="FROM",
            help="Folder of a study (its recommended settings) or of a run; or another baseline.",
            show_default="the newest study or run under runs/",
        ),
    ] = None,
    store: opt.Store = DEFAULT_STORE,
    repeats: Repeats = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the baseline of that name.")] = False,
) -> None:
    """Make a baseline of what was measured, and measure the same again to know the noise.

    Exit code: 0 done, 2 bad input, 130 interrupted; what was measured until then is kept.
    """
    from pathlib import Path

    from tuner.baseline.keep import save as save_baseline
    from tuner.cli.baseline_views import say_kept

    kept = save_baseline(name, source, Path(store), display := _display(), repeats=repeats, force=force)
    raise typer.Exit(say_kept(kept, display))


@baseline.command()
def repeat(
    name: Name,
    store: opt.Store = DEFAULT_STORE,
    repeats: Repeats = None,
) -> None:
    """Measure a baseline's settings again, as another session, and add the runs to it.

    On another day this tells how much the machine differs from day to day.

    Exit code: 0 done, 2 bad input or no run was of use, 130 interrupted; what was measured until then is kept.
    """
    from pathlib import Path

    from tuner.baseline.keep import repeat as repeat_baseline
    from tuner.cli.baseline_views import say_kept

    kept = repeat_baseline(name, Path(store), display := _display(), repeats=repeats)
    code = say_kept(kept, display)
    raise typer.Exit(NOTHING_ADDED if not code and kept.planned and not kept.measured else code)


@baseline.command("list")
def list_(store: opt.Store = DEFAULT_STORE, json_: opt.Json = False) -> None:
    """List all baselines."""
    from pathlib import Path

    from tuner.cli.baseline_views import print_list

    print_list(Path(store), as_json=json_)


@baseline.command()
def show(name: Name, store: opt.Store = DEFAULT_STORE, json_: opt.Json = False) -> None:
    """Show everything about a baseline: settings, load, device, runs, and how much equal runs differ."""
    from pathlib import Path

    from tuner.cli.baseline_views import print_one

    print_one(Path(store), name, as_json=json_)


@baseline.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of the baselines.", show_default=False)],
    store: opt.Store = DEFAULT_STORE,
) -> None:
    """Remove baselines."""
    from pathlib import Path

    from tuner.baseline.store import folder_of, remove

    once = list(dict.fromkeys(names))
    for name in once:
        folder_of(Path(store), name)
    for name in once:
        remove(Path(store), name)
        typer.echo(f"removed {name}")


def _display() -> "ProgressDisplay":
    from rich.console import Console

    from tuner.progress import ProgressDisplay

    return ProgressDisplay(Console(stderr=True))
