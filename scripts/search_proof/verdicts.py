"""How often verdicts are wrong, and how many requests they take, on latencies whose true p95 is known.

The rules of the tool stand beside two that are in wide use. Nothing is measured: the samples are drawn, so that the
truth is known.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.search_proof.goals import goal, percent, table
from workloads.betting import stake_on_fewer, stake_on_more
from workloads.dependence import dependence_of_share
from workloads.evidence import EvidenceWatch
from workloads.intervals import share_high, share_low
from workloads.tolerance import lies_far_above
from workloads.verdict import ALPHA, FEWEST_EFFECTIVE

REQUIRED = 0.95
MOST_REQUESTS = 1000
REPEATS = 500
# True p95 over the bound, less 1: near the bound, where verdicts are hard, ...
NEAR = (-0.10, -0.05, -0.02, 0.0, 0.02, 0.05, 0.10)
# ... and where they are not.
FAR = (-0.40, 0.40)
SIGMA = 0.5
SHORT_WINDOWS = (60, 120, 300)

FEASIBLE, UNDECIDED, INFEASIBLE = 1, 0, -1


@dataclass(frozen=True, slots=True)
class Process:
    """Latencies of requests in the order in which they came.

    Attributes:
        name: for the table.
        p95: the true one.
        draw: samples `[repeats, requests]`.
    """

    name: str
    p95: float
    draw: Callable[[np.random.Generator, int, int], np.ndarray]


def autoregressive(correlation: float) -> Process:
    """Lognormal latencies whose logarithms are an AR(1) process; independent at correlation 0."""

    def draw(rng: np.random.Generator, repeats: int, requests: int) -> np.ndarray:
        from scipy.signal import lfilter

        noise = rng.standard_normal((repeats, requests))
        noise[:, 1:] *= np.sqrt(1 - correlation**2)
        return np.exp(SIGMA * lfilter([1.0], [1.0, -correlation], noise, axis=1))

    from scipy.special import ndtri

    name = f"AR(1) lognormal, correlation {correlation:g}" if correlation else "independent lognormal"
    return Process(name, float(np.exp(SIGMA * ndtri(REQUIRED))), draw)


def single_server(load: float, long_run: int) -> Process:
    """Waiting times of an M/G/1 queue by Lindley's recursion, with lognormal service times; p95 of one long run."""

    def draw(rng: np.random.Generator, repeats: int, requests: int) -> np.ndarray:
        begin = round(40 / (1 - load) ** 2)
        shape = (repeats, begin + requests)
        service = load * rng.lognormal(-(SIGMA**2) / 2, SIGMA, shape)
        walk = np.cumsum(service - rng.exponential(1.0, shape), axis=1)
        # The recursion W' = max(0, W + S - A), solved: how far the walk lies above its lowest point so far.
        return (walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0.0))[:, begin:]

    p95 = float(np.quantile(draw(np.random.default_rng(0), 1, long_run), REQUIRED))
    return Process(f"waiting in an M/G/1 queue at load {load:g}", p95, draw)


class Judge:
    """The rules, put to samples of one process.

    Args:
        latencies: `[repeats, requests]`.
    """

    def __init__(self, latencies: np.ndarray) -> None:
        self._latencies = latencies
        self._requests = latencies.shape[1]
        # It is a property of the sample, whatever the bound.
        self._dependence: dict[int, np.ndarray] = {}

    def _effective(self, requests: int) -> np.ndarray:
        """Effective size of the first requests, `[repeats]`."""
        if requests not in self._dependence:
            self._dependence[requests] = dependence_of_share(self._latencies[:, :requests], REQUIRED)
        return requests / self._dependence[requests]

    def sequential(self, bound: float) -> tuple[np.ndarray, np.ndarray]:
        """Looks at the evidence as a run does that may stop early, and at the end judges as `fixed`."""
        missed = self._latencies > bound
        states, used = self.fixed(bound)
        open_ = np.ones(len(missed), dtype=bool)
        for look in range(2, EvidenceWatch.LOOKS):
            requests = look * self._requests // EvidenceWatch.LOOKS
            size = self._effective(requests)
            misses = missed[:, :requests].mean(axis=1) * size
            out = open_ & (stake_on_more(misses, size, 1 - REQUIRED) * ALPHA >= 1)
            states[out], used[out] = INFEASIBLE, requests
            open_ &= ~out
            if look >= EvidenceWatch.LOOKS // 2:
                held = open_ & (stake_on_fewer(misses, size, 1 - REQUIRED) * ALPHA >= 1)
                states[held], used[held] = FEASIBLE, requests
                open_ &= ~held
        return states, used

    def fixed(self, bound: float) -> tuple[np.ndarray, np.ndarray]:
        """The exact limits of the effective number of requests, as `workloads.verdict` judges."""
        sizes = np.maximum(self._effective(self._requests), FEWEST_EFFECTIVE)
        for i in np.flatnonzero(self._latencies.max(axis=1) <= bound):
            if lies_far_above(bound, self._latencies[i].tolist(), REQUIRED, ALPHA):
                sizes[i] = self._requests
        return self._by_limits(bound, sizes)

    def as_if_independent(self, bound: float) -> tuple[np.ndarray, np.ndarray]:
        """The exact limits of all requests."""
        return self._by_limits(bound, np.full(len(self._latencies), float(self._requests)))

    def point(self, bound: float) -> tuple[np.ndarray, np.ndarray]:
        """The sample's own p95 against the bound."""
        met = (self._latencies <= bound).mean(axis=1)
        return np.where(met >= REQUIRED, FEASIBLE, INFEASIBLE), np.full(len(met), self._requests)

    def _by_limits(self, bound: float, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shares = (self._latencies <= bound).mean(axis=1)
        states = np.full(len(shares), UNDECIDED)
        for i, (share, size) in enumerate(zip(shares.tolist(), sizes.tolist(), strict=True)):
            if share_low(share * size, size, ALPHA) >= REQUIRED:
                states[i] = FEASIBLE
            elif share_high(share * size, size, ALPHA) < REQUIRED:
                states[i] = INFEASIBLE
        return states, np.full(len(shares), self._requests)


RULES: dict[str, Callable[[Judge, float], tuple[np.ndarray, np.ndarray]]] = {
    "ours, sequential": Judge.sequential,
    "ours, all requests": Judge.fixed,
    "exact, as if independent": Judge.as_if_independent,
    "point estimate": Judge.point,
}


def run(*, quick: bool = False, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Put every rule to every process with its true p95 below, at and above the bound.

    Args:
        quick: a tenth of the repeats, for a look.
        say: told of each process as it is done.

    Returns:
        `{repeats, most_requests, alpha, seconds, goals, cases: [{process, p95_over_bound, rule, requests, feasible,
        infeasible, undecided, feasible_low, feasible_high, mean_requests, median_requests}]}`; shares of the repeats,
        with the exact 95 % interval of the feasible ones.
    """
    started_s = time.perf_counter()
    repeats = REPEATS // 10 if quick else REPEATS
    long_run = 400_000 if quick else 8_000_000
    processes = [*map(autoregressive, (0.0, 0.5, 0.9)), *(single_server(load, long_run) for load in (0.5, 0.8))]
    cases = []
    for seed, process in enumerate(processes, start=1):
        judge = Judge(process.draw(np.random.default_rng(seed), repeats, MOST_REQUESTS))
        cases += [_case(process, judge, rule, offset, MOST_REQUESTS) for offset in (*NEAR, *FAR) for rule in RULES]
        for requests in SHORT_WINDOWS:
            short = Judge(process.draw(np.random.default_rng(seed), repeats, requests))
            for rule in ("ours, all requests", "exact, as if independent"):
                cases += [_case(process, short, rule, offset, requests) for offset in (0.0, 0.05)]
        say(f"{process.name}: {repeats} repeats judged")
    return {
        "repeats": repeats,
        "most_requests": MOST_REQUESTS,
        "alpha": ALPHA,
        "seconds": round(time.perf_counter() - started_s, 1),
        "goals": _goals(cases),
        "cases": cases,
    }


def _goals(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ours = [c for c in cases if c["rule"] == "ours, sequential" and c["p95_over_bound"] in NEAR]
    worst = max((c for c in ours if c["p95_over_bound"] > 0), key=lambda c: c["feasible"])
    mean = sum(c["mean_requests"] for c in ours) / len(ours)
    return [
        goal(
            f"a p95 2 to 10 % above the bound is called feasible in at most {percent(ALPHA, 0)} of the runs",
            met=worst["feasible"] <= ALPHA,
            found=f"{_feasible(worst)} at worst ({worst['process']}, {worst['p95_over_bound']:+.0%})",
        ),
        goal(
            f"with fewer requests than {MOST_REQUESTS} in the mean",
            met=mean < MOST_REQUESTS,
            found=f"{mean:.0f} near the bound",
        ),
    ]


def _case(process: Process, judge: Judge, rule: str, offset: float, requests: int) -> dict[str, Any]:
    states, used = RULES[rule](judge, process.p95 / (1 + offset))
    feasible, repeats = int((states == FEASIBLE).sum()), len(states)
    return {
        "process": process.name,
        "p95_over_bound": offset,
        "rule": rule,
        "requests": requests,
        "feasible": feasible / repeats,
        "infeasible": float((states == INFEASIBLE).mean()),
        "undecided": float((states == UNDECIDED).mean()),
        "feasible_low": share_low(feasible, repeats, ALPHA / 2),
        "feasible_high": share_high(feasible, repeats, ALPHA / 2),
        "mean_requests": float(used.mean()),
        "median_requests": float(np.median(used)),
    }


def to_markdown(result: dict[str, Any]) -> str:
    """The result as tables: the worst of each rule, then every process and distance, then short windows."""
    long = [c for c in result["cases"] if c["requests"] == result["most_requests"]]
    short = [c for c in result["cases"] if c["requests"] < result["most_requests"]]
    lines = [
        f"{result['repeats']} repeats of at most {result['most_requests']} requests each, alpha = {result['alpha']:g}. "
        "In brackets exact 95 % intervals of the shares. At worst over the processes, the true p95 within 10 % of the "
        "bound:",
        "",
        *_summary(long),
        "",
        "By process, and by how far the true p95 lies above the bound:",
        "",
        *_every_case(long),
        "",
        "In short windows, how often *feasible* is said of a p95 at the bound, and of one 5 % above it:",
        "",
        *_short_windows(short),
    ]
    return "\n".join(lines) + "\n"


def _summary(cases: list[dict[str, Any]]) -> list[str]:
    rows = []
    for rule in RULES:
        ours = [c for c in cases if c["rule"] == rule and c["p95_over_bound"] in NEAR]
        above = max((c for c in ours if c["p95_over_bound"] > 0), key=lambda c: c["feasible"])
        at = max((c for c in ours if c["p95_over_bound"] == 0), key=lambda c: c["feasible"])
        below = max((c for c in ours if c["p95_over_bound"] < 0), key=lambda c: c["infeasible"])
        mean = sum(c["mean_requests"] for c in ours) / len(ours)
        rows.append((rule, _feasible(above), _feasible(at), percent(below["infeasible"]), f"{mean:.0f}"))
    head = ("rule", "false feasible (p95 above)", "feasible (p95 at the bound)", "false infeasible", "mean requests")
    return table(head, rows)


def _every_case(cases: list[dict[str, Any]]) -> list[str]:
    head = ("process", "p95 over bound", "rule", "feasible", "infeasible", "undecided", "mean requests", "median")
    return table(
        head,
        (
            (
                *(c["process"], f"{c['p95_over_bound']:+.0%}", c["rule"], _feasible(c)),
                *(percent(c["infeasible"]), percent(c["undecided"])),
                *(f"{c['mean_requests']:.0f}", f"{c['median_requests']:.0f}"),
            )
            for c in cases
        ),
    )


def _short_windows(cases: list[dict[str, Any]]) -> list[str]:
    return table(
        ("process", "requests", "rule", "at the bound", "5 % above"),
        (
            (at["process"], str(at["requests"]), at["rule"], _feasible(at), _feasible(above))
            for at, above in zip(cases[::2], cases[1::2], strict=True)
        ),
    )


def _feasible(case: dict[str, Any]) -> str:
    return f"{percent(case['feasible'])} ({percent(case['feasible_low'])} to {percent(case['feasible_high'])})"
