"""Part 4 of the proof: the gain that a study claims, against what winner and default truly do at the same rates."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from scripts.search_proof.capacity import fingerprint
from scripts.search_proof.goals import goal, percent, table
from scripts.search_proof.pairs import PAIRS, Pair
from scripts.search_proof.pool import Ledger, Say, make_all
from scripts.search_proof.study import Job, play
from scripts.search_proof.world import WorldTarget
from tuner.settings import Settings
from workloads.metrics import in_window

# What is claimed comes from the confirmation, which frees rates from luck where a twin has told of it: the default.
STRATEGY = "twin"
TRIALS = 12
# As long together as some eighty studies measure each side.
REPEATS = 160
MOST_BIAS = 0.01
COVERAGE = 0.95
LEDGER = "claims.jsonl"
_COLUMNS = ("claimed", "true", "bias", "bias_error", "spread", "relative", "relative_error", "coverage")
_FRESH_SEEDS = 7_000_000
# A study's confirmation takes the seeds that follow its own: studies that share traffic share its luck.
_SEEDS_APART = 10
_QUICK_PAIRS, _QUICK_REPEATS = 2, 6


@dataclass(frozen=True)
class _Piece:
    """A study and how often both sides are measured again."""

    job: Job
    repeats: int


def run(*, quick: bool, say: Say, folder: Path, processes: int = 1, claim_seeds: int = 10) -> dict[str, Any]:
    """Make studies that end by their number of trials, so that time cuts no confirmation short, and check their claims.

    Args:
        quick: two pairs, two seeds, few repeats: whether it works, not what is so.
        folder: of what is finished.
        processes: to work in.
        claim_seeds: studies per pair.
    """
    names = list(PAIRS)[: _QUICK_PAIRS if quick else None]
    seeds, repeats = (min(2, claim_seeds), _QUICK_REPEATS) if quick else (claim_seeds, REPEATS)
    pieces = [
        _Piece(Job(name, STRATEGY, _SEEDS_APART * number, share=None, trials=TRIALS), repeats)
        for number, (_, name) in enumerate(product(range(seeds), names))
    ]
    ledger = Ledger(folder / LEDGER)
    keys = {piece: f"{fingerprint(PAIRS[piece.job.pair])}/{piece.job.key}/{piece.repeats}" for piece in pieces}
    found = make_all(_study_and_truth, keys, ledger, processes, "claims of {} studies")
    return judge(list(found.values()))


def _study_and_truth(piece: _Piece) -> dict[str, Any]:
    """A study's claim and, where it claims a gain, the true one."""
    pair, job = PAIRS[piece.job.pair], piece.job
    claim = play(job).confirmation
    found: dict[str, Any] = {"job": asdict(job), "claim": claim, "true_gain": None}
    if claim is not None and claim["gain"] is not None:
        winner, default = (true_goodput(pair, claim[side], job.seed, piece.repeats) for side in ("winner", "baseline"))
        found["true_gain"] = winner / default - 1.0
    return found


def true_goodput(pair: Pair, side: Mapping[str, Any], seed: int, repeats: int) -> float:
    """Good requests per second of a side of a claim, over many runs as long as the study's, with fresh traffic.

    Not one long run: at a rate a little above the limit the queue would grow for as long as that lasts.
    """
    target = WorldTarget(pair, seed=_FRESH_SEEDS + seed)
    settings = Settings.from_dict(side["settings"])
    good = total = 0
    for repeat in range(repeats):
        load = pair.lengths.load(side["rate"], _FRESH_SEEDS + 1000 * seed + repeat)
        window = in_window(target.measure(settings, load, pair.slo, stop_when_settled=False).requests)
        good, total = good + sum(bool(request.good) for request in window), total + len(window)
    return side["rate"] * good / total


def judge(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bias and coverage of the claims that were made, over all and per pair."""
    verdicts: dict[str, int] = {}
    for entry in found:
        verdict = "broken off" if entry["claim"] is None else entry["claim"]["verdict"]
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    measured = [e for e in found if e["true_gain"] is not None]
    claimed = [e for e in measured if e["claim"]["verdict"] == "better"]
    names = dict.fromkeys(entry["job"]["pair"] for entry in found)
    over_all = _figures(claimed)
    bias, coverage = over_all["bias"], over_all["coverage"]
    return {
        "studies": len(found),
        "verdicts": verdicts,
        "all": over_all,
        "measured": _figures(measured),
        "pairs": {name: _figures([e for e in claimed if e["job"]["pair"] == name]) for name in names},
        "goals": [
            goal(
                f"bias of the claimed gain at most {percent(MOST_BIAS, 0)}",
                met=bias is not None and abs(bias) <= MOST_BIAS,
                found=f"{percent(bias, 2)} ± {percent(over_all['bias_error'], 2)} over {len(claimed)} claims",
            ),
            goal(
                f"the claim's interval holds the true gain in {percent(COVERAGE, 0)} of the studies",
                met=coverage is not None and coverage >= COVERAGE,
                found=percent(coverage),
            ),
        ],
    }


def _figures(claimed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import numpy as np

    if not claimed:
        return dict.fromkeys(_COLUMNS) | {"claims": 0}
    claims, true = [e["claim"] for e in claimed], np.array([e["true_gain"] for e in claimed])
    errors = np.array([c["gain"] for c in claims]) - true
    held = [c["gain_low"] <= t <= c["gain_high"] for c, t in zip(claims, true, strict=True)]
    relative = errors / (1.0 + true)
    spread, relative_spread = (float(e.std(ddof=1)) if len(e) > 1 else None for e in (errors, relative))
    return {
        "claims": len(claimed),
        "claimed": float(np.mean([c["gain"] for c in claims])),
        "true": float(true.mean()),
        "bias": float(errors.mean()),
        "bias_error": None if spread is None else spread / len(errors) ** 0.5,
        "spread": spread,
        "relative": float(relative.mean()),
        "relative_error": None if relative_spread is None else relative_spread / len(errors) ** 0.5,
        "coverage": float(np.mean(held)),
    }


def to_markdown(result: Mapping[str, Any]) -> str:
    """The table of the results."""
    named = {"all": result["all"], **result["pairs"], "claimed or not": result["measured"]}
    rows = [
        [name, str(figures["claims"]), *(percent(figures[column]) for column in _COLUMNS)]
        for name, figures in named.items()
    ]
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in result["verdicts"].items())
    lines = [
        "## Claims",
        "",
        f"{result['studies']} studies of {TRIALS} trials ({STRATEGY}), each under traffic of its own, ended as: "
        f"{verdicts}. Of those that measured a gain, both sides were measured {REPEATS} times more at the rates of the "
        "claim (fewer with `--quick`). The last row has also those gains that were not claimed. Bias is in points of "
        "the gain; the same error as a share of the winner's goodput stands beside it:",
        "",
        *table(
            [
                *("pair", "claims", "claimed gain", "true gain", "bias", "± (standard error)", "spread"),
                *("as a share", "±", "interval holds"),
            ],
            rows,
        ),
        "",
    ]
    return "\n".join(lines)
