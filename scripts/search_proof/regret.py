"""Part 1 of the proof: how far from the best settings each strategy's recommendation is, at equal simulated time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.search_proof.capacity import Truth, find_truth, fingerprint, settle
from scripts.search_proof.comparison import MOST_TIME, SHARES, SMALL_REGRET, SUBJECT, at_start
from scripts.search_proof.goals import goal, p_value, percent, table
from scripts.search_proof.pairs import PAIRS, point_of
from scripts.search_proof.plots import Panel, write_chart
from scripts.search_proof.pool import Ledger, Say, make_all
from scripts.search_proof.study import SEARCHED_SHARE, SPARE, Job, Played, play
from scripts.search_proof.trajectory import can_be_timed

OTHERS = ("random", "tpe", "gp", "staged")
STARTS_S = (0.0, 30.0, 120.0)
SIGNIFICANT = 0.01
LEDGER = "studies.jsonl"
PAIRS_CHART, STARTS_CHART = "regret-per-pair.svg", "regret.svg"

QUICK_SHARE = 0.02
_QUICK_PAIRS, _QUICK_STRATEGIES = 2, (SUBJECT, "random", "tpe", "staged")


def run(
    *,
    quick: bool,
    say: Say,
    folder: Path,
    processes: int = 1,
    seeds: int = 30,
    gp_seeds: int = 5,
    strategies: Sequence[str] = (SUBJECT, *OTHERS),
    starts_s: Sequence[float] = STARTS_S,
) -> dict[str, Any]:
    """Make the studies that are not made yet, and compare.

    Args:
        quick: two pairs, two seeds, short searches, no `gp`: whether it works, not what is so.
        folder: of the truth, of the finished studies and of the charts.
        processes: to work in.
        seeds: of each strategy; `gp_seeds` of `gp`, which thinks for a minute per study.
    """
    names = list(PAIRS)
    if quick:
        names, seeds, starts_s = names[:_QUICK_PAIRS], min(seeds, 2), starts_s[:2]
        strategies = [s for s in strategies if s in _QUICK_STRATEGIES]
    truths = {name: find_truth(PAIRS[name], folder, processes, say, rough=quick) for name in names}
    share = QUICK_SHARE if quick else SEARCHED_SHARE
    counts = {strategy: min(seeds, gp_seeds) if strategy == "gp" else seeds for strategy in strategies}
    jobs = [
        Job(n, s, seed, share=share * SPARE)
        for seed in range(seeds)
        for n in names
        for s in strategies
        if seed < counts[s]
    ]
    ledger = Ledger(folder / LEDGER)
    played = make_studies(jobs, ledger, processes)
    # Studies that saw the time have to be made again where starts take longer; the others are timed anew.
    again = [
        replace(p.job, start_s=start_s, share=share)
        for p in played
        for start_s in starts_s
        if not can_be_timed(p, start_s)
    ]
    played += make_studies(again, ledger, processes)
    if not quick:
        for name in names:
            chosen = {point for p in played if p.job.pair == name for _, point in p.bests if point is not None}
            truths[name] = settle(PAIRS[name], truths[name], sorted(chosen), folder, processes)
    result = compare(played, truths, starts_s, say) | {"charts": folder.name}
    draw(result, folder)
    return result


def make_studies(jobs: Sequence[Job], ledger: Ledger, processes: int) -> list[Played]:
    """All these studies, those that were made before from the ledger."""
    keys = {job: f"{fingerprint(PAIRS[job.pair])}/{job.key}" for job in jobs}
    made = make_all(_play, keys, ledger, processes, "{} studies")
    return [Played.from_dict(stored) for stored in made.values()]


def _play(job: Job) -> dict[str, Any]:
    return play(job).to_dict()


def compare(
    played: Sequence[Played], truths: Mapping[str, Truth], starts_s: Sequence[float], say: Say
) -> dict[str, Any]:
    """What the studies show."""
    for broken in (p for p in played if p.error is not None):
        say(f"{broken.job.key} broke off: {broken.error}")
    starts = {f"{start_s:g}": at_start(played, truths, start_s) for start_s in starts_s}
    strategies = dict.fromkeys(p.job.strategy for p in played)
    return {
        "pairs": {name: _describe(name, truth) for name, truth in truths.items()},
        "shares": list(SHARES),
        "starts": starts,
        "strategies": {s: _effort([p for p in played if p.job.strategy == s]) for s in strategies},
        "goals": [goal for start, found in starts.items() for goal in _goals(start, found)],
    }


def _describe(name: str, truth: Truth) -> dict[str, Any]:
    pair = PAIRS[name]
    return {
        "why": pair.why,
        "slo": pair.slo_text,
        "optimum": truth.optimum,
        "default_regret": truth.regret(point_of(pair, pair.default.to_dict())),
        "points": len(truth.values),
        "within_2_percent": truth.share_within(0.02),
        "within_10_percent": truth.share_within(0.10),
    }


def _effort(played: Sequence[Played]) -> dict[str, Any]:
    return {
        "studies": len(played),
        "broken": sum(p.error is not None for p in played),
        "trials": sum(p.trials for p in played) / len(played),
        "thinking_s_per_trial": sum(p.thinking_s for p in played) / max(1, sum(p.trials for p in played)),
    }


def _goals(start: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    ours, tests = found["strategies"].get(SUBJECT), found["tests"]
    if ours is None:
        return []
    regret, others = ours["median_at_limit"], ", ".join(tests)
    p_texts = ", ".join(f"{other} {p_value(test['p_holm'])}" for other, test in tests.items())
    return [
        goal(
            f"starts of {start} s: {SUBJECT} within {percent(SMALL_REGRET, 0)} of the optimum (median) at "
            f"{percent(MOST_TIME, 0)} of the grid's time",
            met=regret <= SMALL_REGRET,
            found=f"{percent(regret)}; within it from {percent(ours['small_from'])} of the time on",
        ),
        goal(
            f"starts of {start} s: {SUBJECT} better than {others} at p < {SIGNIFICANT}",
            met=all(test["p_holm"] is not None and test["p_holm"] < SIGNIFICANT for test in tests.values()),
            found=p_texts,
        ),
    ]


def to_markdown(result: Mapping[str, Any]) -> str:
    """The tables of the results."""
    pairs, starts = result["pairs"], result["starts"]
    charged = (
        "Time is the device's, starts of the engine included, and what the strategy thought, in seconds of a core of "
        "the machine that made this. What a point is worth comes from runs of 2000 requests, all under the same "
        "traffic, for whatever was recommended and the twenty that seemed best in shorter ones."
    )
    lines = ["## Regret at equal time", "", charged, "", *_pairs_table(pairs), ""]
    for start, found in starts.items():
        strategies, tests = found["strategies"], found["tests"]
        head = ["strategy", "median", "mean", "worst", f"median <= {percent(SMALL_REGRET, 0)} from", *pairs]
        rows = [
            [
                strategy,
                percent(figures["median_at_limit"]),
                percent(figures["mean_at_limit"]),
                percent(figures["worst_at_limit"]),
                percent(figures["small_from"]),
                *(percent(figures["pairs"][name]["median_at_limit"]) for name in pairs),
            ]
            for strategy, figures in strategies.items()
        ]
        lines += [
            f"### Starts of {start} s",
            "",
            f"Regret at {percent(MOST_TIME, 0)} of the grid's time, over all pairs and seeds, and each pair's median:",
            "",
            *table(head, rows),
            "",
            f"`{SUBJECT}` against each other strategy in the same studies (Wilcoxon, one-sided, Holm over the "
            "strategies; per pair uncorrected):",
            "",
            *table(
                ["against", "studies", "p", "p (Holm)", *pairs],
                [
                    [
                        other,
                        str(t["studies"]),
                        p_value(t["p"]),
                        p_value(t["p_holm"]),
                        *(map(p_value, t["pairs"].values())),
                    ]
                    for other, t in tests.items()
                ],
            ),
            "",
            "Median regret by the share of the grid's time that was spent, and in brackets p (Holm) of the same test:",
            "",
            *_earlier_table(found["earlier"]),
            "",
        ]
    lines += ["### What the strategies cost to run", "", *_effort_table(result["strategies"]), ""]
    lines += [f"![Median regret against time, per pair]({result['charts']}/{PAIRS_CHART})", ""]
    lines += [f"![Median and worst regret against time, over all pairs]({result['charts']}/{STARTS_CHART})", ""]
    return "\n".join(lines)


def _earlier_table(earlier: Mapping[str, Any]) -> list[str]:
    strategies = next(iter(earlier.values()))["medians"]
    rows = []
    for strategy in strategies:
        cells = []
        for then in earlier.values():
            p = then["p_holm"].get(strategy)
            cells.append(percent(then["medians"][strategy]) + (f" ({p_value(p)})" if p is not None else ""))
        rows.append([strategy, *cells])
    return table(["strategy", *(percent(float(share)) for share in earlier)], rows)


def _pairs_table(pairs: Mapping[str, Any]) -> list[str]:
    head = ["pair and what decides it", "SLO", "best, good/s", "default's regret", "points within 2 %", "within 10 %"]
    return table(
        head,
        [
            [
                *(
                    f"{name}: {pair['why']}",
                    f"`{pair['slo']}`",
                    f"{pair['optimum']:.3g}",
                    percent(pair["default_regret"]),
                ),
                *(percent(pair["within_2_percent"]), percent(pair["within_10_percent"])),
            ]
            for name, pair in pairs.items()
        ],
    )


def _effort_table(strategies: Mapping[str, Any]) -> list[str]:
    rows = [
        [name, str(s["studies"]), str(s["broken"]), f"{s['trials']:.1f}", f"{s['thinking_s_per_trial']:.2f}"]
        for name, s in strategies.items()
    ]
    return table(["strategy", "studies", "broken off", "trials per study", "core seconds to propose one"], rows)


def draw(result: Mapping[str, Any], folder: Path) -> None:
    """Write the charts."""
    starts, shares = result["starts"], result["shares"]

    def panel(title: str, lines: Mapping[str, Sequence[float]], top: float) -> Panel:
        return Panel(title, "share of the grid's time", "regret", shares, lines, top, SMALL_REGRET)

    first, found = next(iter(starts.items()))
    per_pair = [
        panel(
            f"{name}, starts of {first} s", {s: f["pairs"][name]["median"] for s, f in found["strategies"].items()}, 0.6
        )
        for name in result["pairs"]
    ]
    write_chart(folder / PAIRS_CHART, per_pair)
    over_all = [
        panel(f"{kind}, starts of {start} s", {s: f[kind] for s, f in found["strategies"].items()}, top)
        for kind, top in (("median", 0.4), ("worst", 1.0))
        for start, found in starts.items()
    ]
    write_chart(folder / STARTS_CHART, over_all, columns=len(starts))
