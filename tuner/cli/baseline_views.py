"""What `tune baseline` prints."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from reports.diff.load import load_side
from reports.diff.side import Side
from reports.format import clean, milliseconds, percent, request_rate, seconds
from reports.settings import at_default, setting_text
from tuner.baseline.keep import Kept
from tuner.baseline.noise import measured_noise
from tuner.baseline.record import Baseline
from tuner.baseline.store import names_in, open_baseline
from tuner.cli.output import INTERRUPTED_CODE, print_json
from tuner.progress import ProgressDisplay

if TYPE_CHECKING:
    from rich.table import Table


def say_kept(kept: Kept, display: ProgressDisplay) -> int:
    """Say what was saved or added.

    Returns:
        The exit code.
    """
    if kept.baseline is None:
        display.say("interrupted before the first run was whole: nothing was saved")
        return INTERRUPTED_CODE
    what = f"{kept.baseline.name}: {_counted(kept.baseline)} in {shlex.quote(str(kept.baseline.path))}"
    if kept.interrupted:
        display.say(f"interrupted; {what}")
        return INTERRUPTED_CODE
    if not kept.baseline.simulated:
        what += f"; noise of a run: {', '.join(_noise(kept.baseline, load_side(kept.baseline.path)))}"
    display.say(what)
    if kept.planned and not kept.measured:
        display.say(f"0 of {kept.planned} repeats were added: see above for the reasons")
    return 0


def print_list(store: Path, *, as_json: bool) -> None:
    """All baselines of a store; one that is damaged is listed with the reason."""
    from rich.console import Console
    from rich.text import Text

    names = names_in(store)
    if as_json:
        print_json({"store": str(store), "baselines": [_entry(store, name) for name in names]})
        return
    console = Console()
    if not names:
        console.print(Text(f"no baselines in {str(store)!r}: tune baseline save makes one"))
        return
    # Few columns: at 80 characters no name of a setting is broken.
    table = _table("baseline", "model, device and load", "settings")
    damaged = []
    for name in names:
        try:
            baseline, side = _opened(store, name)
        except UserError as error:
            damaged.append(str(error))
            continue
        cells = (
            [name, _when(baseline), *_counted(baseline).split(", "), "noise of a run:", *_noise(baseline, side)],
            [*_engine(baseline), *_load(baseline)],
            _settings(baseline.record["settings"]),
        )
        table.add_row(*(Text(_lines(cell)) for cell in cells))
    console.print(table)
    for reason in damaged:
        console.print(Text(reason, style="red"))


def print_one(store: Path, name: str, *, as_json: bool) -> None:
    """Everything about one baseline.

    Raises:
        UserError: no such baseline, or a damaged one.
    """
    from rich.console import Console
    from rich.text import Text

    baseline, side = _opened(store, name)
    if as_json:
        print_json(_content(baseline, side))
        return
    record = baseline.record
    source = record.get("source") or {}
    facts = {
        "baseline": [f"{name}, {_when(baseline)}, from the {source.get('kind')} {source.get('folder')}"],
        "engine": _engine(baseline),
        "load": _load(baseline),
        "settings": _settings(record["settings"]),
        "noise of a run": _noise(baseline, side),
        "code": [f"tune {record.get('tool_version')}, commit {(record['environment'] or {}).get('git_commit')}"],
    }
    table = _table("", "", several_lines=False)
    table.show_header = False
    for title, lines in facts.items():
        table.add_row(Text(title, style="bold"), Text(_lines(lines)))
    runs = _table("run", "seed", "session", "goodput", "p95 TTFT", "mean TPOT", several_lines=False)
    for entry, run in zip(record["runs"], side.runs, strict=True):
        summary = run.record.meta["summary"]
        numbers = (
            request_rate(summary.get("request_goodput")),
            milliseconds(summary.get("p95_ttft_ms")),
            milliseconds(summary.get("mean_tpot_ms")),
        )
        runs.add_row(*map(Text, (clean(entry["path"]), str(run.seed), clean(_minute(run.session)), *numbers)))
    Console().print(table, "", runs)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(clean, lines))


def _opened(store: Path, name: str) -> tuple[Baseline, Side]:
    baseline = open_baseline(store, name)
    return baseline, load_side(baseline.path)


def _entry(store: Path, name: str) -> dict[str, Any]:
    try:
        return _content(*_opened(store, name))
    except UserError as error:
        return {"name": name, "error": str(error)}


def _content(baseline: Baseline, side: Side) -> dict[str, Any]:
    noise = {n.metric: {"share": n.share, "freedom": n.freedom} for n in measured_noise(side)}
    return {**baseline.record, "folder": str(baseline.path), "noise": noise}


def _table(*columns: str, several_lines: bool = True) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_lines=several_lines)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _when(baseline: Baseline) -> str:
    return _minute(baseline.record["created"])


def _minute(iso: str) -> str:
    """A time of the record, UTC."""
    return iso[:16].replace("T", " ")


def _counted(baseline: Baseline) -> str:
    runs, sessions = baseline.record["runs"], {run["session"] for run in baseline.record["runs"]}
    return f"{_number(len(runs), 'run')}, {_number(len(sessions), 'session')}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _engine(baseline: Baseline) -> list[str]:
    model, device = baseline.record["model"], baseline.record["device"]
    simulated = " (simulated)" if baseline.simulated else ""
    return [f"{model.get('name')}, {model.get('dtype')}", f"{device.get('name')}{simulated}"]


def _load(baseline: Baseline) -> list[str]:
    record = baseline.record
    rate = "closed loop" if baseline.rate is None else request_rate(baseline.rate)
    window = f"windows of {seconds(record['load']['window_s'])}"
    return [str(record["workload"].get("name")), rate, window, str(record["slo"] or "no SLO")]


def _settings(settings: Mapping[str, Any]) -> list[str]:
    changed = [f"{name} {setting_text(name, value)}" for name, value in settings.items() if not at_default(name, value)]
    return changed or ["all at their defaults"]


def _noise(baseline: Baseline, side: Side) -> list[str]:
    if baseline.simulated:
        return ["none: simulated"]
    noise = measured_noise(side)
    return [f"{n.metric} \N{PLUS-MINUS SIGN}{percent(n.share)}" for n in noise] or ["not measured"]
