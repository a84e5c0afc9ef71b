"""One run of each side: what single requests say of a difference, and what they cannot."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from reports.diff.judge import judge
from reports.diff.measured import measure, run_noise
from reports.diff.metrics import Metric, metric_named
from reports.diff.resample import by_requests
from reports.diff.scale import Scale
from reports.diff.side import Side
from tests.reports.conftest import DEFAULTS
from tests.reports.made_up_sides import made_up_run, made_up_side
from tests.reports.toy_server import serve
from workloads.metrics import Window, summarize
from workloads.records import RequestRecord

RATIOS = Scale(None)


def later(request: RequestRecord, factor: float) -> RequestRecord:
    """The same request with each of its waits so many times as long."""

    def moved(time: int | None) -> int | None:
        return None if time is None else request.t_sched + round((time - request.t_sched) * factor)

    times: dict[str, Any] = {name: moved(getattr(request, name)) for name in ("t_admit", "t_first", "t_last", "t_end")}
    return replace(request, **times, chunk_times=tuple(moved(t) or 0 for t in request.chunk_times))


def served(name: str, seed: int = 1, factor: float = 1.0, *, simulated: bool = False) -> Side:
    requests, steps, window = serve(tuple(DEFAULTS.items()), 6.0, seed)
    requests = [later(r, factor) for r in requests]
    summary = summarize(requests, steps, Window(window.start_ns, window.end_ns))
    return made_up_side(name, [made_up_run(seed, name, requests, steps, change={"simulated": simulated}, **summary)])


@pytest.mark.parametrize("name", ["mean_ttft", "p95_ttft", "p50_e2e", "max_tpot", "p99_itl"])
def test_what_slows_every_request_alike_is_certain_under_the_same_traffic(name: str) -> None:
    base, new = served("base"), served("new", factor=1.1)
    found = by_requests(metric_named(name), RATIOS, base.runs[0].record, new.runs[0].record, 0, paired=True)
    assert found is not None
    assert found.design == "requests paired"
    assert found.difference == pytest.approx(np.log(1.1), rel=1e-3)
    assert found.variance == pytest.approx(0.0, abs=1e-9)
    assert not found.has_noise


def test_other_traffic_leaves_its_luck_in_the_interval() -> None:
    base, new = served("base"), served("new", seed=2)
    found = by_requests(metric_named("mean_ttft"), RATIOS, base.runs[0].record, new.runs[0].record, 0, paired=False)
    assert found is not None
    assert found.design == "requests"
    low, high = found.interval(0.05)
    assert low < found.difference < high


def test_what_does_not_come_from_single_requests_has_no_such_interval() -> None:
    base, new = served("base").runs[0].record, served("new").runs[0].record
    assert by_requests(metric_named("preemptions"), Scale(1.0, relative=False), base, new, 0, paired=True) is None


def test_repeats_bring_the_machines_noise_into_a_comparison_of_other_traffic() -> None:
    metric, base, new = metric_named("mean_ttft"), served("base"), served("new", seed=2)
    alone = measure(metric, base, new).estimate
    values = [100.0, 110.0, 90.0]
    stored = made_up_side("noise", [made_up_run(5, mean_ttft_ms=value) for value in values])
    assert measure(metric, base, new, [stored]).estimate == alone, "it is of another time"
    more = [made_up_run(1, "base", mean_ttft_ms=value) for value in values]
    first = replace(base.runs[0], seed=1, session="elsewhere")
    with_noise = measure(metric, made_up_side("base", [first, *more]), new).estimate
    assert alone is not None
    assert with_noise is not None
    assert (alone.has_noise, with_noise.has_noise) == (False, True)
    noise = np.log(values).var(ddof=1)
    assert with_noise.variance == pytest.approx(alone.variance + (1 / 4 + 1) * noise)
    assert 2 < with_noise.freedom < np.inf


def test_where_no_machine_is_involved_the_traffic_is_all_that_can_differ() -> None:
    diff = judge(served("base", simulated=True), served("new", seed=2, factor=4.0, simulated=True))
    (line,) = [line for line in diff.gated if line.metric.name == "mean_ttft"]
    assert (line.design, line.has_noise, diff.exit_code) == ("requests", True, 1)


def test_the_noise_of_a_side_is_that_of_its_repeats() -> None:
    metric: Metric = metric_named("mean_ttft")
    repeats = made_up_side("main", [made_up_run(0, mean_ttft_ms=v) for v in (100.0, 110.0)])
    found = run_noise(metric, repeats)
    assert found is not None
    assert found == (pytest.approx(np.log(1.1) / np.sqrt(2)), 1)
    assert run_noise(metric, made_up_side("main", repeats.runs[:1])) is None
