"""The results as a page and as a table on the terminal."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from scripts.gate_proof.change import CHANGES, NOTHING, SLOWDOWN
from scripts.gate_proof.figures import interval
from scripts.gate_proof.machines import MACHINES
from scripts.gate_proof.real import REAL
from scripts.gate_proof.trials import (
    DAY_SPREAD,
    DAYS,
    FIXED,
    IN_TURN,
    RULES,
    RUNS_A_DAY,
    STORED,
    STORED_RULES,
    machine_named,
)
from scripts.search_proof.goals import percent, table
from tuner.ci.gate import PAIRS

if TYPE_CHECKING:
    from rich.table import Table

_HEAD = ("machine", "change", "trials", "alarm (exit 1)", "95 % interval", "cannot tell (exit 3)", "pass (exit 0)")


def to_markdown(results: Mapping[str, Any]) -> str:
    """The page of all results."""
    figures = results["figures"]
    lines = [
        "# The gate: false alarms, and slowdowns found",
        "",
        "Made by `scripts/bench_gate.py`; the same command makes it again. But for the real CPU everything here is "
        "*simulated*. What is judged is the product's own path with its defaults: `measure_in_turn` and `judge`, which "
        "are told that the machines are real and know nothing of their noise. Every trial has noise and traffic of its "
        "own.",
        "",
        "| goal | found | |",
        "| --- | --- | --- |",
        *(f"| {g['text']} | {g['found']} | {'met' if g['met'] else '**missed**'} |" for g in results["goals"]),
        "",
        "The machines:",
        "",
        *(f"- **{name}**: {machine_named(name).why}." for name in (*MACHINES, REAL) if _has(figures, IN_TURN, name)),
        "",
        "Intervals are Clopper and Pearson's.",
        "",
        "## Measured in turn, as `tune ci` does",
        "",
        f"{PAIRS} pairs, A B B A, each of the same traffic on both sides; nothing is known of the machine beforehand. "
        "*10 % slower* means that every step takes 10 % longer, *prompts* only steps that compute prompts, *decodes* "
        "only those that do not. An alarm without a change is a false one, a slowdown without an alarm a missed one; "
        "where the gate cannot tell it says so, and nobody is misled.",
        "",
        *table(_HEAD, _rows(figures, IN_TURN)),
        "",
        "## Against a baseline of other days",
        "",
        f"A baseline of {DAYS} days with {RUNS_A_DAY} runs of one seed on each (`tune baseline repeat`), against "
        f"{RUNS_A_DAY} runs of another day (`tune diff`). The machine's pace differs from day to day by "
        f"{percent(DAY_SPREAD, 0)} (standard deviation). Of the same runs: the default gate; rules, "
        f"{', '.join(f'`{rule}`' for rule in RULES)}; and what other tools do, the last run of the baseline against "
        "the first new one, with the limits of these rules taken as they are.",
        "",
        *_stored(figures),
        "## By metric",
        "",
        "How often each line of the gate was *worse*, or could not be told, measured in turn.",
        "",
        *_by_metric(figures),
    ]
    return "\n".join(lines)


def to_terminal(results: Mapping[str, Any]) -> "Table":
    """The same as one table."""
    from rich.table import Table

    found = Table("judged", *_HEAD, title="How often the gate raised an alarm")
    for kind in results["figures"]:
        for row in _rows(results["figures"], kind):
            found.add_row(kind, *row)
    return found


def _has(figures: Mapping[str, Any], kind: str, machine: str) -> bool:
    return machine in figures.get(kind, {})


def _rows(figures: Mapping[str, Any], kind: str) -> Iterator[list[str]]:
    for machine, by_change in figures.get(kind, {}).items():
        for change in (name for name in CHANGES if name in by_change):
            counts = by_change[change]
            trials = counts["trials"]
            shares = (percent(counts[key] / trials) for key in ("cannot_tell", "passed"))
            yield [machine, change, str(trials), percent(counts["alarm_share"]), interval(counts), *shares]


def _stored(figures: Mapping[str, Any]) -> Iterator[str]:
    rows = [[row[0], kind, *row[1:]] for kind in (STORED, STORED_RULES, FIXED) for row in _rows(figures, kind)]
    yield from table((_HEAD[0], "judged by", *_HEAD[1:]), rows)
    yield ""


def _by_metric(figures: Mapping[str, Any]) -> Iterator[str]:
    rows = []
    for machine, by_change in figures.get(IN_TURN, {}).items():
        for change in (NOTHING.name, SLOWDOWN.name):
            if change in by_change:
                counts = by_change[change]
                for name, verdicts in counts["lines"].items():
                    shares = (percent(verdicts.get(v, 0) / counts["trials"]) for v in ("worse", "cannot tell"))
                    rows.append([machine, change, f"`{name}`", *shares])
    yield from table(("machine", "change", "line", "worse", "cannot tell"), rows)
