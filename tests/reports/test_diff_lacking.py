"""A metric that some runs have and others lack: what never came is worse than any number."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reports.diff.diff import Line, Verdict
from reports.diff.judge import judge
from reports.diff.rules import parse_rule
from reports.diff.side import Side
from reports.diff.text import headline
from tests.reports.conftest import DEFAULTS
from tests.reports.made_up_sides import made_up_run, made_up_side
from tests.reports.toy_server import serve
from workloads.records import RequestRecord

N = None


def side(name: str, values: Sequence[float | None], *, simulated: bool = False, slo: str | None = None) -> Side:
    """Runs of seeds 0, 1, ... whose mean TPOT is this; where it is None, none of the requests got an answer."""
    lost = [_lost(request) for request in serve(tuple(DEFAULTS.items()), 6.0, 1)[0]]
    change = {"simulated": simulated, "slo": slo}
    runs = [
        made_up_run(
            seed, "monday", lost if value is None else (), (),
            change=change, mean_ttft_ms=100.0, mean_tpot_ms=value, request_goodput=2.0 + seed,
        )
        for seed, value in enumerate(values)
    ]  # fmt: skip
    return made_up_side(name, runs)


def _lost(request: RequestRecord) -> RequestRecord:
    return replace(request, status="timeout", t_first=None, t_last=None, t_end=None, chunk_times=(), chunk_tokens=())


def tpot(base: Side, new: Side, *rules: str) -> Line:
    diff = judge(base, new, rules=[parse_rule(rule) for rule in rules])
    return next(line for line in diff.lines if line.metric.name == "mean_tpot")


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        ((10, 10, 10), (N, N, N), Verdict.WORSE),
        ((10, 10, 10), (N, N, 10), Verdict.WORSE),
        ((10, 10, 10), (N, 10, 10), Verdict.CANNOT_TELL),
        ((10, 10, 10), (N, 5, 5), Verdict.CANNOT_TELL),
        ((N, 10, 10), (N, N, N), Verdict.CANNOT_TELL),
        ((N, 10, 10), (10, 10, 10), Verdict.CANNOT_TELL),
        ((N, N, N), (N, N, N), Verdict.CANNOT_TELL),
        ((10,), (N,), Verdict.CANNOT_TELL),  # one run of each side may be luck
        ((10, 10, 10), (N, 20, 20.1), Verdict.WORSE),  # by the two that have it already
    ],
)
@pytest.mark.parametrize("rules", [(), ("mean_tpot>+5%",)])
def test_what_never_came_is_worse_than_any_number(
    base: Sequence[float | None], new: Sequence[float | None], verdict: Verdict, rules: tuple[str, ...]
) -> None:
    found = tpot(side("base", base), side("new", new), *rules)
    assert found.verdict is verdict
    if verdict is Verdict.CANNOT_TELL or new.count(N) > 1:
        assert "never reached in " in found.reason


def test_the_reason_is_in_words_and_in_the_headline() -> None:
    diff = judge(side("base", (10, 10, 10)), side("new", (N, N, 10)))
    assert "mean TPOT never reached in 2 of 3 runs of new" in headline(diff).sentence


def test_a_gain_that_is_asked_for_is_not_given_by_what_never_came() -> None:
    assert tpot(side("base", (10, 10, 10)), side("new", (N, N, N)), "mean_tpot<-5%").verdict is Verdict.CANNOT_TELL


def test_a_metric_that_has_nothing_to_do_with_the_runs_decides_nothing() -> None:
    runs = [made_up_run(seed, mean_ttft_ms=100.0, mean_tpot_ms=None) for seed in (0, 1)]
    diff = judge(made_up_side("base", runs), made_up_side("new", runs))
    (found,) = [line for line in diff.lines if line.metric.name == "mean_tpot"]
    assert (found.verdict, diff.exit_code) == (Verdict.NOT_MEASURED, 0)


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        ((10, 10, 10), (N, 10, 10), Verdict.WORSE),
        ((N, 10, 10), (N, 10, 10), Verdict.SAME),
        ((N, 10, 10), (10, 10, 10), Verdict.CANNOT_TELL),
    ],
)
def test_of_simulated_sides_one_seed_is_proof(
    base: Sequence[float | None], new: Sequence[float | None], verdict: Verdict
) -> None:
    assert tpot(side("base", base, simulated=True), side("new", new, simulated=True)).verdict is verdict


def test_goodput_under_two_slos_is_shown_and_not_judged() -> None:
    base, new = (side(name, (10, 10, 10), slo=f"mean_tpot={ms}ms") for name, ms in (("base", 20), ("new", 5)))
    diff = judge(base, new)
    assert "goodput" not in {line.metric.name for line in diff.gated}
    assert "goodput" in {line.metric.name for line in diff.lines}
    assert diff.slo is None or not diff.slo.gated
    assert any("neither goodput nor the SLO is judged" in notice for notice in diff.notices)
    ruled = judge(base, new, rules=[parse_rule("goodput<-5%")])
    assert [line.verdict for line in ruled.gated] == [Verdict.CANNOT_TELL]


def test_one_folder_on_both_sides_is_told() -> None:
    one = side("base", (10, 10))
    assert any("same folder" in notice for notice in judge(one, made_up_side("base", one.runs)).notices)
