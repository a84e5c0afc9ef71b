"""The report of a study."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.errors import UserError
from reports.charts import importance_chart, trial_chart
from reports.classes_view import by_class_table, class_numbers
from reports.commands import bench_command, vllm_flags
from reports.format import (
    DASH,
    change,
    count,
    interval,
    is_known,
    milliseconds,
    percent,
    request_rate,
    text,
)
from reports.front_view import front_section
from reports.headline import recommended, study_headline
from reports.objective_text import GOODPUT, ShownObjective, objectives_of
from reports.prediction_view import prediction_section
from reports.preemption_view import preemptions_section
from reports.result_rows import MAIN_ROWS, MORE_ROWS, ResultRow, shown
from reports.sections import (
    diagnosis_section,
    latency_section,
    repeat_section,
    slo_table,
    subtitle,
    trace_section,
    trial_mark,
    validity_table,
)
from reports.settings import assignment, setting_text, short_names
from reports.settings_view import settings_tables
from reports.sides import Side, baseline_side, representative_run, winner_side
from reports.study import StudyFolder
from reports.view import Command, Fact, Report, Section, Table
from reports.waits_view import waits_section, waits_table
from workloads.records import RunRecord


def study_report(folder: StudyFolder) -> Report:
    """Everything there is to say about a study, with what is missing on disk said so."""
    study = folder.study
    runs, unreadable = _readable_runs(folder)
    bounds = _bounds(folder)
    command = (Command("Repeat the study", (text(study["command"]),)),) if study.get("command") else ()
    return Report(
        title="tune: scheduler settings for an SLO",
        subtitle=subtitle(study),
        headline=study_headline(folder),
        facts=study_facts(folder),
        commands=recommended_commands(folder),
        sections=(
            _validity(folder, unreadable),
            attainment_section(folder),
            comparison_section(folder),
            *([front] if (front := front_section(study)) else []),
            trace_section(runs),
            _waits(folder, runs),
            preemptions_section(runs),
            latency_section(runs, bounds),
            _trials(folder),
            *([predicted] if (predicted := prediction_section(study)) else []),
            diagnosis_section(runs),
            repeat_section(study, command),
        ),
    )


def study_facts(folder: StudyFolder) -> tuple[Fact, ...]:
    """The numbers for the top of the page: those of the settings to use, with the baseline's beside them."""
    side, baseline = recommended(folder) or baseline_side(folder), baseline_side(folder)
    trials = folder.study["trials"]
    states = [trial["state"] for trial in trials]
    tried = Fact(
        "Trials", count(len(trials)), f"{states.count('infeasible')} infeasible, {states.count('failed')} failed"
    )
    if side is None:
        return (tried,)

    def default(value: str) -> str:
        return "" if baseline is None or side.label == "baseline" else f"default {value}"

    of_default = {} if baseline is None else baseline.summary
    return (
        Fact("Goodput", request_rate(side.goodput), default(request_rate(baseline.goodput if baseline else None))),
        Fact("Offered rate", request_rate(side.rate), default(request_rate(baseline.rate if baseline else None))),
        Fact(
            "p95 TTFT",
            milliseconds(side.summary.get("p95_ttft_ms")),
            default(milliseconds(of_default.get("p95_ttft_ms"))),
        ),
        Fact(
            "p95 TPOT",
            milliseconds(side.summary.get("p95_tpot_ms")),
            default(milliseconds(of_default.get("p95_tpot_ms"))),
        ),
        tried,
    )


def recommended_commands(folder: StudyFolder) -> tuple[Command, ...]:
    """The settings to use, to measure again and for vLLM; empty when the study supports none."""
    side = recommended(folder)
    if side is None:
        return ()
    return bench_command(folder.study, side.settings, side.rate), vllm_flags(side.settings, folder.study)


def attainment_section(folder: StudyFolder) -> Section:
    """Every SLO bound of both sides."""
    table = slo_table([(side.label, side.verdict) for side in _sides(folder)])
    return Section(
        "slo",
        "SLO attainment",
        text=() if table else ("No bound was judged.",),
        tables=(table,) if table else (),
    )


def comparison_section(folder: StudyFolder) -> Section:
    """Baseline beside winner."""
    sides = _sides(folder)
    if not sides:
        return Section("comparison", "Baseline and winner", text=("The default settings were not measured to an end.",))
    source = (
        "From the confirmation runs, all runs of a side together."
        if all(side.confirmed for side in sides)
        else "From the search's own runs, which chose the winner: its numbers are flattered until they are confirmed."
    )
    if len(sides) == 1:
        source = f"Only the {sides[0].label} stands here: there is no other winner."
    lines = [source]
    if confirmation := folder.study["confirmation"]:
        lines.append(f"Confirmation: {text(confirmation.get('verdict'))}. {text(confirmation.get('text'))}")
    settings = settings_tables([(side.label, side.settings) for side in sides])
    classes = by_class_table([(side.label, [class_numbers(side.classes, side.summary)]) for side in sides])
    tables = (_result_table(sides), *([classes] if classes else []), *settings, _more_results_table(sides))
    return Section("comparison", "Baseline and winner", text=tuple(lines), tables=tables)


def _waits(folder: StudyFolder, runs: Sequence[tuple[str, RunRecord]]) -> Section:
    """Waiting in the runs that stand for the sides, and by class over all their runs where there are classes."""
    section = waits_section(runs)
    sides = [side for side in _sides(folder) if len(side.classes) > 1]
    columns = [
        (f"{side.label}, {text(name)}", numbers, None) for side in sides for name, numbers in side.classes.items()
    ]
    if not columns:
        return section
    table = replace(waits_table(columns), essential=False, caption="By class, all runs of a side together.")
    return replace(section, tables=(*section.tables, table))


def _result_table(sides: Sequence[Side]) -> Table:
    intervals = [interval(side.goodput_low, side.goodput_high, request_rate) for side in sides]
    rows = [
        _result_row("Offered rate", request_rate, [side.rate for side in sides]),
        _result_row("Goodput", request_rate, [side.goodput for side in sides]),
    ]
    if any(cell != DASH for cell in intervals):
        rows.append(("95% interval", *intervals, *([""] if len(sides) == 2 else [])))
    rows += _summary_rows(MAIN_ROWS, sides)
    return Table(_result_headers("Result", sides), tuple(rows), numeric=frozenset((1, 2, 3)))


def _more_results_table(sides: Sequence[Side]) -> Table:
    rows = tuple(_summary_rows(MORE_ROWS, sides))
    return Table(_result_headers("More results", sides), rows, numeric=frozenset((1, 2, 3)), essential=False)


def _summary_rows(rows: Sequence[ResultRow], sides: Sequence[Side]) -> list[tuple[str, ...]]:
    summaries = [side.summary for side in sides]
    return [_result_row(row.name, row.write, [row.read(s) for s in summaries]) for row in shown(rows, summaries)]


def _result_headers(first: str, sides: Sequence[Side]) -> tuple[str, ...]:
    return (first, *(side.label for side in sides), *(["change"] if len(sides) == 2 else []))


def _result_row(name: str, write: Callable[[float | None], str], values: Sequence[float | None]) -> tuple[str, ...]:
    cells = (name, *(write(value) for value in values))
    if len(values) != 2:
        return cells
    # The change of a percentage in percent would be read as points.
    return (*cells, "" if write is percent else _relative(*values))


def _relative(before: float | None, after: float | None) -> str:
    return change(after / before - 1) if is_known(before) and is_known(after) and before != 0 else DASH


def _validity(folder: StudyFolder, unreadable: Sequence[str]) -> Section:
    invalid = [
        (path, run.meta) for path, run in folder.runs.items() if (run.meta.get("validity") or {}).get("valid") is False
    ]
    total = len(folder.runs) + len(folder.problems)
    lines = [
        f"{count(total)} runs: {count(len(folder.runs) - len(invalid))} valid, {count(len(invalid))} not valid, "
        f"{count(len(folder.problems))} cannot be read. A run that is not valid never wins."
    ]
    lines += [f"{text(path)}: {text(problem)}" for path, problem in folder.problems.items()]
    lines += [text(problem) for problem in unreadable]
    behind = {path: side.label for side in _sides(folder) for path in side.runs}
    shown = [(f"{behind[path]}, {path}", folder.runs[path].meta) for path in behind if path in folder.runs]
    shown += [(path, meta) for path, meta in invalid if path not in behind]
    table = validity_table(shown)
    return Section("validity", "Validity", text=tuple(lines), tables=(table,) if table else ())


def _trials(folder: StudyFolder) -> Section:
    trials = folder.study["trials"]
    if not trials:
        return Section("trials", "All trials", text=("No trial was made.",))
    charts = (trial_chart(trials), importance_chart(folder.study["importance"] or {}))
    without_goodput = sum(not is_known(trial.get("goodput")) for trial in trials)
    lines = ["Best first. Rate held is the highest rate at which the SLO was met, by point estimate."]
    if _expected_rates(trials):
        lines.append(
            "All runs saw the same few requests, which are kinder to some settings than to others. Rate expected is "
            "what a setting should hold under much more traffic, by its runs and the twin; it decides which is best."
        )
    if without_goodput:
        lines.append(f"{count(without_goodput)} trials gave no goodput and have no point in the chart.")
    if not folder.study["importance"]:
        lines.append("There were too few trials to tell which parameter matters.")
    return Section(
        "trials",
        "All trials",
        text=tuple(lines),
        tables=(_trial_table(folder),),
        charts=tuple(chart for chart in charts if chart is not None),
    )


def _trial_table(folder: StudyFolder) -> Table:
    best = (folder.study["best"] or {}).get("trial")
    objectives = objectives_of(folder.study)
    others = [objective for objective in objectives if objective.name != GOODPUT.name]
    trials = sorted(folder.study["trials"], key=lambda trial: _rank(trial, objectives[0]))
    names = list(dict.fromkeys(name for trial in trials for name in trial["settings"]))
    varied = [name for name in names if len({repr(trial["settings"].get(name)) for trial in trials}) > 1]
    shown = short_names([trial["settings"] for trial in trials])
    fixed = [assignment(name, trials[0]["settings"].get(name)) for name in shown if name not in varied]
    expected = ("Rate expected",) if _expected_rates(trials) else ()
    rows = tuple(
        (
            f"{trial['number']}{' (baseline)' if trial.get('kind') == 'baseline' else ''}",
            trial_mark(trial["state"]),
            request_rate(trial.get("rate")),
            *(request_rate(trial.get("expected")) for _ in expected),
            request_rate(trial.get("goodput")),
            *(objective.write((trial.get("values") or {}).get(objective.name)) for objective in others),
            *(setting_text(name, trial["settings"].get(name)) for name in varied),
            _reason(trial),
        )
        for trial in trials
    )
    return Table(
        headers=("Trial", "Verdict", "Rate held", *expected, "Goodput", *(o.header for o in others), *varied, "Reason"),
        rows=rows,
        numeric=frozenset(range(2, 4 + len(expected) + len(others) + len(varied))),
        highlight=frozenset(i for i, trial in enumerate(trials) if trial["number"] == best),
        caption=f"The same in every trial: {', '.join(fixed)}; all others at their defaults." if fixed else "",
    )


def _expected_rates(trials: Sequence[Mapping[str, Any]]) -> bool:
    return any(is_known(trial.get("expected")) for trial in trials)


def _rank(trial: Mapping[str, Any], main: ShownObjective) -> tuple[int, float, int]:
    order = {"complete": 0, "behind": 1, "infeasible": 2, "failed": 3}
    value = trial.get("expected") or (trial.get("values") or {}).get(main.name, trial.get("goodput"))
    if value is None:
        return order.get(trial["state"], 4), 0.0 if main.larger_is_better else math.inf, trial["number"]
    return order.get(trial["state"], 4), -value if main.larger_is_better else value, trial["number"]


def _reason(trial: Mapping[str, Any]) -> str:
    """Why a trial has the verdict it has, as far as the record says."""
    if trial.get("error"):
        return text(trial["error"])
    constraint = trial.get("constraint")
    if trial["state"] == "infeasible" and (constraint or 0) > 0:
        rates = [run["rate"] for run in trial["runs"] if is_known(run.get("rate"))]
        at = f" at {request_rate(min(rates))}" if rates else ""
        missed = f", short by {percent(constraint)}" if is_known(constraint) else ""
        return f"missed the SLO{at}{missed}"
    if trial["state"] == "complete":
        return DASH
    early = [text(run["stopped_early"]) for run in trial["runs"] if run.get("stopped_early")]
    return ", ".join(dict.fromkeys(early)) or DASH


def _sides(folder: StudyFolder) -> list[Side]:
    return [side for side in (baseline_side(folder), winner_side(folder)) if side is not None]


def _readable_runs(folder: StudyFolder) -> tuple[list[tuple[str, RunRecord]], list[str]]:
    """The run that stands for each side, and why a side has none."""
    runs, problems = [], []
    for side in _sides(folder):
        run = representative_run(side, folder)
        if run is None:
            problems.append(f"No run of the {side.label} can be read: charts and diagnosis lack it.")
            continue
        try:
            run.request_records()
            len(run.iterations)
        except UserError as error:
            problems.append(f"The {side.label}'s run has no charts: {error}")
            continue
        runs.append((side.label, run))
    return runs, problems


def _bounds(folder: StudyFolder) -> Sequence[Mapping[str, Any]]:
    for side in _sides(folder):
        if bounds := (side.verdict or {}).get("bounds"):
            return bounds
    return ()
