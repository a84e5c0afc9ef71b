"""Service-level objectives: what is asked of the latencies, and which requests and runs meet it.

    p95_ttft=1s,p95_tpot=60ms,p99_e2e=30s

`p95_ttft=1s` asks that of the requests scheduled in the window at least 95 % have a TTFT of 1 s or less.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.errors import UserError
from workloads.bounds import METRICS, RIGHT_FORM, Bound, bound_from_ms, parse_bound
from workloads.records import RequestRecord
from workloads.verdict import Verdict, holds, judge_bound

GOODPUT_STATISTIC = "p95"

# `vllm bench serve --goodput` calls it so.
_GOODPUT_NAMES = {"e2el": "e2e"}


@dataclass(frozen=True, slots=True)
class Slo:
    """Bounds that hold together, at least one. `str()` gives a canonical text that `parse_slo` reads back.

    Attributes:
        bounds: in the order of `METRICS`, then by quantile.
    """

    bounds: tuple[Bound, ...]

    def __str__(self) -> str:
        return ",".join(str(b) for b in self.bounds)

    def is_good(self, record: RequestRecord) -> bool:
        """Whether every bound holds for this request (see `workloads.verdict.holds`)."""
        return all(holds(b, record) for b in self.bounds)

    def judge(self, records: Iterable[RequestRecord]) -> Verdict:
        """Judge a run, or several together, by the requests scheduled in its window.

        Each bound is judged at its own 95 %.
        """
        requests = list(records)
        return Verdict(tuple(judge_bound(b, requests) for b in self.bounds))


def parse_slo(texts: Iterable[str]) -> Slo:
    """Read bounds, comma separated or one per text.

    Args:
        texts: such as `["p95_ttft=1s,p95_tpot=60ms"]`; a single text does too. Statistics are `pNN` (p50 to p99.9),
            `mean` and `max`; metrics `ttft`, `tpot`, `itl`, `e2e` and `queue`; units `us`, `ms`, `s` and `m`.

    Raises:
        UserError: no bound at all, one that is not of this form, or the same statistic of a metric twice.
    """
    pieces = [texts] if isinstance(texts, str) else list(texts)
    return _slo_of(parse_bound(item) for piece in pieces for item in piece.split(",") if item.strip())


def parse_goodput(items: Iterable[str]) -> Slo:
    """Read the per-request form of other tools, `ttft:1000 tpot:50`, in milliseconds.

    Such a bound says which requests are good and nothing of how many must be; it is taken as a p95 bound.

    Raises:
        UserError: no item at all, one that is not of this form, or a metric twice.
    """

    def bound(item: str) -> Bound:
        name, colon, milliseconds = item.partition(":")
        if not colon:
            raise UserError(f"{item!r} is not of the form metric:milliseconds: write for example ttft:1000 tpot:50")
        metric = name.lower()
        return bound_from_ms(_GOODPUT_NAMES.get(metric, metric), milliseconds, GOODPUT_STATISTIC)

    pieces = [items] if isinstance(items, str) else list(items)
    return _slo_of(bound(item) for piece in pieces for item in piece.replace(",", " ").split())


def _slo_of(bounds: Iterable[Bound]) -> Slo:
    by_name: dict[str, Bound] = {}
    for bound in bounds:
        if bound.name in by_name:
            raise UserError(f"{bound.name} is given twice ({by_name[bound.name]} and {bound}): give it once")
        by_name[bound.name] = bound
    if not by_name:
        raise UserError(f"the SLO is empty: {RIGHT_FORM}")
    return Slo(tuple(sorted(by_name.values(), key=_canonical_order)))


def _canonical_order(bound: Bound) -> tuple[int, float]:
    required = bound.required_share
    return METRICS.index(bound.metric), 0.0 if required is None else float(required)
