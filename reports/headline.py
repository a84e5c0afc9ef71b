"""The verdict in one sentence, and what must be known before believing it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reports.classes_view import mostly_missed
from reports.format import (
    attained_percent,
    attained_range,
    change,
    count,
    interval,
    is_known,
    milliseconds,
    percent,
    request_rate,
    required_percent,
    text,
)
from reports.objective_text import main_objective
from reports.settings import assignment
from reports.sides import Side, baseline_side, winner_side
from reports.study import StudyFolder
from reports.view import Headline, Tone
from workloads.early_stop import HELD

KEEP_DEFAULTS = "Keep the default settings"


def notices(record: Mapping[str, Any]) -> tuple[str, ...]:
    """What holds for every number of a run or study."""
    found = []
    if record.get("simulated"):
        found.append("Simulated: no real device ran. Step times come from a model; measure on the device before use.")
    if record["model"].get("weights") == "random":
        found.append("Random weights: speed is that of the architecture, the generated text means nothing.")
    return tuple(found)


def lost_notice(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, ...]:
    """What the latencies leave out, where any request was lost: that flatters those who lose many.

    Args:
        summaries: whose (empty where there is one only), and its summary.
    """
    listed = []
    for whose, summary in summaries:
        failed, completed = (n if is_known(n := summary.get(name)) else 0 for name in ("failed", "completed"))
        if failed > 0:
            share = percent(failed / (failed + completed))
            listed.append(f"{count(failed)} of {count(failed + completed)} requests ({share}) {whose}".rstrip())
    if not listed:
        return ()
    return (f"Latencies are those of completed requests; not completed were {', '.join(listed)}.",)


_UP_TO_THERE = "Throughput and tails are those up to there"


def run_headline(meta: Mapping[str, Any]) -> Headline:
    """The verdict of one run."""
    warnings = notices(meta)
    if meta.get("stopped_early"):
        held = meta["stopped_early"] == HELD
        until = "The window ended there; its requests were served to their end" if held else _UP_TO_THERE
        warnings += (f"Stopped early: {text(meta['stopped_early'])}. {until}.",)
    warnings += lost_notice([("", meta["summary"])])
    summary, verdict, validity = meta["summary"], meta.get("verdict"), meta.get("validity") or {}
    if not (summary.get("completed") or summary.get("failed")):
        return Headline("No request was scheduled in the measured window: nothing can be said.", Tone.WARN, warnings)
    if validity.get("valid") is False:
        failed = [text(check.get("name")) for check in validity.get("checks") or () if not check.get("ok")]
        reason = ", ".join(failed) or "no reason recorded"
        return Headline(f"This run is not valid ({reason}): do not rely on its numbers.", Tone.BAD, warnings)
    load = "with this closed-loop load" if meta.get("rate") is None else f"at {request_rate(meta['rate'])}"
    if verdict is None:
        sentence = (
            f"No SLO was given: {request_rate(summary.get('request_throughput'))} completed {load}, "
            f"p95 TTFT {milliseconds(summary.get('p95_ttft_ms'))}."
        )
        return Headline(sentence, Tone.NEUTRAL, warnings)
    slo, goodput = text(meta.get("slo")), request_rate(summary.get("request_goodput"))
    if verdict.get("state") == "feasible":
        return Headline(f"The SLO {slo} holds {load}, with a goodput of {goodput}.", Tone.GOOD, warnings)
    if verdict.get("state") == "infeasible":
        reason = _worst_bound(verdict, "infeasible")
        return Headline(f"The SLO {slo} does not hold {load}: {reason}.", Tone.BAD, warnings)
    reason = _worst_bound(verdict, "undecided")
    return Headline(f"Cannot tell whether the SLO {slo} holds {load}: {reason}.", Tone.WARN, warnings)


def _worst_bound(verdict: Mapping[str, Any], state: str) -> str:
    bounds = [bound for bound in verdict.get("bounds") or () if bound.get("state") == state]
    if not bounds:
        return "no bound gives a reason"
    bound = min(bounds, key=lambda b: (b.get("met_share") or 0) - (b.get("required_share") or 0))
    if bound.get("required_share") is None:
        return f"{text(bound.get('text'))} was {milliseconds(bound.get('observed_ms'))}"
    met = f"{attained_percent(bound.get('met_share'))} of the requests met {text(bound.get('text'))}"
    if state == "undecided":
        met += f" (95% interval {attained_range(bound.get('share_low'), bound.get('share_high'))})"
    return f"{met}, {required_percent(bound.get('required_share'))} must"


def study_headline(folder: StudyFolder) -> Headline:
    """The verdict of a study."""
    study = folder.study
    warnings = notices(study)
    if study["state"] in ("interrupted", "running"):
        warnings += (f"The study is {study['state']}: what follows is what was measured so far.",)
    if folder.problems:
        warnings += (f"{count(len(folder.problems))} of its runs cannot be read; see Validity.",)
    sides = [side for side in (baseline_side(folder), winner_side(folder)) if side is not None]
    warnings += lost_notice([(f"with the {side.label}", side.summary) for side in sides])
    warnings += _missed_classes(recommended(folder) or winner_side(folder))
    sentence, tone = _study_verdict(folder)
    return Headline(sentence, tone, warnings)


def _missed_classes(side: Side | None) -> tuple[str, ...]:
    """An SLO over all requests can hold while a small class misses it."""
    if side is None or len(side.classes) < 2:
        return ()
    return tuple(
        f"Class {text(name)} mostly missed the SLO with the {side.label}: {percent(share)} of its requests were good."
        for name, share in mostly_missed(side.classes)
    )


def recommended(folder: StudyFolder) -> Side | None:
    """The settings that the study supports using; None when it supports none."""
    baseline, winner = baseline_side(folder), winner_side(folder)
    if nothing_held(folder.study):
        return None
    verdict = (folder.study["confirmation"] or {}).get("verdict")
    return baseline if winner is None or verdict in _KEEPS_DEFAULTS else winner


def changed_settings(baseline: Side | None, side: Side) -> str:
    """The settings of a side that differ from the baseline's, `name=value, ...`; all when there is no baseline."""
    before = {} if baseline is None else baseline.settings
    changed = [(name, value) for name, value in side.settings.items() if before.get(name) != value]
    return ", ".join(assignment(name, value) for name, value in changed)


def nothing_held(study: Mapping[str, Any]) -> bool:
    """No setting met the SLO at any rate. In a closed loop a setting that did has no rate."""
    best = study["best"]
    if best is None:
        return True
    arrival = str((study.get("workload") or {}).get("arrival") or "")
    return best.get("rate") is None and not arrival.startswith("closed")


def _study_verdict(folder: StudyFolder) -> tuple[str, Tone]:
    study = folder.study
    best, confirmation = study["best"], study["confirmation"] or {}
    slo = _slo(study)
    if study["state"] == "failed":
        return f"The study failed: {text(study.get('reason'))}.", Tone.BAD
    if best is None and study["state"] != "complete":
        return "No result yet: nothing that was measured so far meets the SLO.", Tone.WARN
    if nothing_held(study):
        return f"None of the settings tried holds {slo} at any rate tried.", Tone.BAD
    say = _VERDICTS.get(str(confirmation.get("verdict")), _unconfirmed)
    return say(folder, confirmation)


def _better(folder: StudyFolder, confirmation: Mapping[str, Any]) -> tuple[str, Tone]:
    baseline, winner = baseline_side(folder), winner_side(folder)
    if winner is None:
        return _unconfirmed(folder, confirmation)
    use, slo = changed_settings(baseline, winner), _slo(folder.study)
    main = main_objective(folder.study)
    if confirmation.get("gain") is None or baseline is None:
        held = main.write(main.of_side(winner))
        return f"Use {use}: {held} within {slo}, where the default settings gave no comparable {main.title}.", Tone.GOOD
    return (
        f"Use {use}: {_gain(folder, confirmation, 'over the default settings ')} "
        f"within {slo}, from {main.write(main.of_side(baseline))} to {main.write(main.of_side(winner))}.",
        Tone.GOOD,
    )


def _same(folder: StudyFolder, confirmation: Mapping[str, Any]) -> tuple[str, Tone]:
    return f"{KEEP_DEFAULTS}: the best others found make no difference, {_gain(folder, confirmation)}.", Tone.NEUTRAL


def _worse(folder: StudyFolder, confirmation: Mapping[str, Any]) -> tuple[str, Tone]:
    return f"{KEEP_DEFAULTS}: confirmed, the best others found are worse, {_gain(folder, confirmation)}.", Tone.NEUTRAL


def _cannot_tell(folder: StudyFolder, confirmation: Mapping[str, Any]) -> tuple[str, Tone]:
    if confirmation.get("gain") is None:
        return f"{KEEP_DEFAULTS}: no gain could be confirmed. {text(confirmation.get('text'))}", Tone.WARN
    return (
        f"Cannot tell whether the settings found beat the default ones, {_gain(folder, confirmation)}. "
        f"{KEEP_DEFAULTS}, or give the study more time.",
        Tone.WARN,
    )


def _default_is_best(folder: StudyFolder, confirmation: Mapping[str, Any]) -> tuple[str, Tone]:
    others = sum(trial.get("kind") == "search" for trial in folder.study["trials"])
    held = _default_holds(folder)
    if not others:
        return (
            f"No other settings were tried, the budget was too short for that; the default ones {held}. Give the "
            "study more time.",
            Tone.WARN,
        )
    main = main_objective(folder.study)
    return (
        f"The default settings are best here: of {count(others)} others tried none gave {main.better} within "
        f"{text(folder.study.get('slo'))}; they {held}.",
        Tone.NEUTRAL,
    )


def _held_by_best(folder: StudyFolder) -> str:
    """The rate that the recommended settings hold; their goodput where there is no rate (a closed loop)."""
    best = folder.study["best"] or {}
    if best.get("rate") is not None:
        return request_rate(best["rate"])
    trial: Mapping[str, Any] = next((t for t in folder.study["trials"] if t["number"] == best.get("trial")), {})
    return request_rate(trial.get("goodput"))


def _default_holds(folder: StudyFolder) -> str:
    """How sure it is that the default settings hold their rate, by the verdict over the confirmation runs."""
    rate = _held_by_best(folder)
    side = baseline_side(folder)
    state = (side.verdict or {}).get("state") if side is not None else None
    if state == "infeasible":
        return f"held {rate} in the search, but missed it when measured again"
    return f"hold about {rate}, which the runs leave undecided" if state == "undecided" else f"hold {rate}"


def _unconfirmed(folder: StudyFolder, confirmation: Mapping[str, Any]) -> tuple[str, Tone]:
    baseline, winner = baseline_side(folder), winner_side(folder)
    if winner is None:
        held = _held_by_best(folder)
        return f"So far the default settings are the best tried; they hold {held}. Nothing was confirmed.", Tone.WARN
    main = main_objective(folder.study)
    ours, theirs = main.of_side(winner), main.of_side(baseline) if baseline else None
    return (
        f"Best so far, not confirmed: {changed_settings(baseline, winner)} with {main.write(ours)} of "
        f"{main.title}, against {main.write(theirs)} with the default settings.",
        Tone.WARN,
    )


def _slo(study: Mapping[str, Any]) -> str:
    return text(study["slo"]) if study.get("slo") else "the objective"


def _gain(folder: StudyFolder, confirmation: Mapping[str, Any], over: str = "") -> str:
    title = main_objective(folder.study).title
    return f"{title} {change(confirmation.get('gain'))} {over}{_within(confirmation)}"


def _within(confirmation: Mapping[str, Any]) -> str:
    return f"(95% interval {interval(confirmation.get('gain_low'), confirmation.get('gain_high'), change)})"


_VERDICTS: Mapping[str, Callable[[StudyFolder, Mapping[str, Any]], tuple[str, Tone]]] = {
    "better": _better,
    "same": _same,
    "worse": _worse,
    "cannot tell": _cannot_tell,
    "default is best": _default_is_best,
}
_KEEPS_DEFAULTS = frozenset(("same", "worse", "cannot tell", "default is best"))
