"""Every verdict and exit code of a diff, on made-up numbers whose answer is known."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from reports.diff.diff import Diff, Line, Verdict
from reports.diff.judge import judge
from reports.diff.rules import Rule, parse_margin, parse_rule
from reports.diff.side import Side
from tests.reports.made_up_sides import KEYS, made_up_run, made_up_side, side_of
from workloads.records import RequestRecord

NS_PER_MS = 1_000_000


def line(diff: Diff, name: str = "mean_ttft") -> Line:
    (found,) = [one for one in diff.lines if one.metric.name == name]
    return found


def pairs(ratios: Sequence[float], **more: Any) -> tuple[Side, Side]:
    """Two sides of one session whose mean TTFT has these ratios, seed by seed."""
    base = side_of("base", {seed: [100.0 * (1 + seed)] for seed in range(len(ratios))}, **more)
    new = side_of("new", {seed: [100.0 * (1 + seed) * ratio] for seed, ratio in enumerate(ratios)}, **more)
    return base, new


@pytest.mark.parametrize(
    ("ratios", "verdict", "code"),
    [
        ((1.20, 1.21, 1.19, 1.20), Verdict.WORSE, 1),
        ((0.80, 0.81, 0.79, 0.80), Verdict.BETTER, 0),
        ((1.01, 0.99, 1.00, 1.02), Verdict.SAME, 0),
        ((1.015, 1.015, 1.016, 1.015), Verdict.SAME, 0),  # certain, and too little to matter
        ((1.30, 0.90, 1.10, 1.00), Verdict.CANNOT_TELL, 3),
        ((1.00, 1.00, 1.00, 1.00), Verdict.SAME, 0),
    ],
)
def test_each_verdict_of_the_default_gate(ratios: Sequence[float], verdict: Verdict, code: int) -> None:
    diff = judge(*pairs(ratios))
    assert (line(diff).verdict, diff.exit_code) == (verdict, code)
    assert line(diff).gated


def test_a_throughput_that_falls_is_worse() -> None:
    base = made_up_side("base", [made_up_run(s, output_throughput=100.0 + s) for s in range(4)])
    new = made_up_side("new", [made_up_run(s, output_throughput=80.0 + s) for s in range(4)])
    assert line(judge(base, new), "output_throughput").verdict is Verdict.WORSE
    assert line(judge(new, base), "output_throughput").verdict is Verdict.BETTER


@pytest.mark.parametrize(
    ("rule", "verdict", "code"),
    [
        ("mean_ttft>+5%", Verdict.WORSE, 1),
        ("mean_ttft>15%", Verdict.FINE, 0),
        ("mean_ttft>+10%", Verdict.CANNOT_TELL, 3),
        ("mean_ttft<+5%", Verdict.FINE, 0),  # a gain is asked for, whatever that is good for
        ("p99_e2e>+5%", Verdict.CANNOT_TELL, 3),  # measured on neither side
    ],
)
def test_rules_replace_the_default_gate(rule: str, verdict: Verdict, code: int) -> None:
    diff = judge(*pairs((1.10, 1.11, 1.09, 1.10)), rules=[parse_rule(rule)])
    assert [one.verdict for one in diff.gated] == [verdict]
    assert diff.exit_code == code


def test_one_line_for_each_rule_and_none_twice() -> None:
    rules = [parse_rule(text) for text in ("mean_ttft>+5%", "mean_ttft>+5%", "mean_ttft<-20%")]
    diff = judge(*pairs((1.10, 1.11, 1.09, 1.10)), rules=rules)
    assert [one.name for one in diff.gated] == ["mean_ttft>+5%", "mean_ttft<-20%"]
    assert [one.verdict for one in diff.gated] == [Verdict.WORSE, Verdict.FINE]


@pytest.mark.parametrize("text", ["p95_ttft", "p95_ttft>5", "p95_ttft>+5%!", ">5%", "p95_ttft=5%", "p95_ttft>>5%"])
def test_a_rule_of_another_form_is_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(UserError, match=r"p95_ttft>\+5%"):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "naming"),
    [("p95_tttf>5%", "did you mean p95_ttft"), ("goodput<3%", "goodput<-3%"), ("goodput<-100%", "100 %")],
)
def test_a_rule_that_cannot_be_meant_is_refused(text: str, naming: str) -> None:
    with pytest.raises(UserError, match=naming):
        parse_rule(text)


def test_a_rule_reads_back_as_it_is_written() -> None:
    rule = Rule("p95_ttft", above=True, limit=0.05)
    assert parse_rule(str(rule)) == rule == parse_rule(" p95_ttft > 5 % ")
    assert parse_rule("goodput<+3%") == Rule("goodput", above=False, limit=0.03)


@pytest.mark.parametrize("text", ["0%", "100%", "-5%", "much"])
def test_a_margin_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=text):
        parse_margin(text)


def test_the_margin_says_what_must_not_go_unseen() -> None:
    sides = pairs((1.04, 0.97, 1.03, 0.96))
    assert judge(*sides).exit_code == 0
    narrow = judge(*sides, margin=0.03)
    assert (line(narrow).verdict, narrow.exit_code) == (Verdict.CANNOT_TELL, 3)
    assert "3%" in line(narrow).reason


def test_one_run_of_each_side_decides_nothing_however_far_apart() -> None:
    diff = judge(*pairs((3.0,)))
    assert (line(diff).verdict, diff.exit_code) == (Verdict.CANNOT_TELL, 3)
    assert any("tune baseline repeat" in notice for notice in diff.notices)


def test_repeats_stored_with_the_baseline_tell_the_noise_for_a_single_new_run() -> None:
    base = side_of("base", {0: [100.0, 101.0, 99.0, 100.0]})
    assert judge(base, side_of("new", {0: [130.0]})).exit_code == 1
    assert judge(base, side_of("new", {0: [100.5]})).exit_code == 0
    loud = side_of("base", {0: [70.0, 130.0, 100.0, 90.0]})
    assert judge(loud, side_of("new", {0: [130.0]})).exit_code == 3


def test_repeats_of_a_further_baseline_count_unless_it_is_of_another_device() -> None:
    sides = pairs((1.03, 1.05, 1.07, 1.06))
    noise = side_of("night", {5: [100.0, 101.0, 99.0, 100.0]}, session="tuesday")
    assert line(judge(*sides, noise=[noise])).freedom == 3 + 3
    other = side_of("other", {5: [100.0, 101.0]}, change={"device": {"name": "Other GPU", "kind": "cuda"}})
    diff = judge(*sides, noise=[other])
    assert line(diff).freedom == 3
    assert any("other" in notice for notice in diff.notices)


def at(session: str, value: float) -> Side:
    return side_of(session, {0: [value, value * 1.01, value * 0.99], 1: [2 * value, 2.02 * value]}, session=session)


def test_sides_of_different_times_differ_only_beyond_the_margin() -> None:
    assert judge(at("monday", 100.0), at("tuesday", 101.0)).exit_code == 0
    diff = judge(at("monday", 100.0), at("tuesday", 108.0))
    assert (line(diff).verdict, diff.exit_code) == (Verdict.CANNOT_TELL, 3)
    assert any("different times" in notice for notice in diff.notices)
    assert judge(at("monday", 100.0), at("tuesday", 130.0)).exit_code == 1
    together = judge(at("monday", 100.0), side_of("new", {0: [108.0], 1: [216.0]}))
    assert together.exit_code == 1
    assert together.notices == ()


def test_sides_of_other_seeds_are_compared_and_it_says_that_traffic_differed() -> None:
    base = side_of("base", {0: [100.0], 1: [102.0], 2: [98.0], 3: [100.0]})
    new = side_of("new", {10: [150.0], 11: [152.0], 12: [148.0]})
    diff = judge(base, new)
    assert (line(diff).design, diff.exit_code) == ("unpaired", 1)
    assert any("no seed" in notice for notice in diff.notices)


def test_a_metric_on_neither_side_is_not_measured_and_decides_nothing() -> None:
    diff = judge(*pairs((1.0, 1.0)))
    assert line(diff, "mean_tpot").verdict is Verdict.NOT_MEASURED
    assert diff.exit_code == 0


def test_nothing_in_common_is_refused() -> None:
    base, new = made_up_side("a", [made_up_run(mean_ttft_ms=1.0)]), made_up_side("b", [made_up_run(mean_tpot_ms=1.0)])
    with pytest.raises(UserError, match="nothing in common"):
        judge(base, new)


@pytest.mark.parametrize(
    "change",
    [
        {"validity": {"valid": False, "checks": [{"name": "driver_lag", "ok": False, "detail": "sent too late"}]}},
        {"stopped_early": "verdict settled"},
    ],
)
def test_a_run_that_cannot_be_trusted_is_left_out_and_the_gate_cannot_tell(change: dict[str, Any]) -> None:
    base = side_of("base", {s: [100.0] for s in range(4)})
    bad = made_up_run(3, change=change, mean_ttft_ms=900.0)
    good = [made_up_run(s, mean_ttft_ms=100.0) for s in range(3)]
    diff = judge(base, made_up_side("new", [*good, bad]))
    assert (line(diff).verdict, diff.exit_code) == (Verdict.SAME, 3)
    assert "new, seed 3" in diff.distrust[0]
    alone = judge(base, made_up_side("new", [bad]))
    assert (line(alone).verdict, alone.exit_code) == (Verdict.CANNOT_TELL, 3)
    # What the other runs prove is a regression all the same.
    slower = [made_up_run(s, mean_ttft_ms=150.0) for s in range(3)]
    assert judge(base, made_up_side("new", [*slower, bad])).exit_code == 1


def with_preemptions(name: str, counts: Sequence[float]) -> Side:
    return made_up_side(name, [made_up_run(s, mean_ttft_ms=100.0, preemptions=n) for s, n in enumerate(counts)])


def test_counts_that_may_be_0_are_compared_by_plain_differences() -> None:
    rules = [parse_rule("preemptions>+5%")]
    none, some = with_preemptions("base", (0, 0, 0, 0)), with_preemptions("new", (10, 11, 9, 10))
    diff = judge(none, some, rules=rules)
    assert (diff.gated[0].relative, diff.gated[0].change, diff.exit_code) == (False, 10.0, 1)
    assert judge(none, none, rules=rules).exit_code == 0
    assert judge(some, none, rules=rules).exit_code == 0


def answered(make_record: Callable[..., RequestRecord], ttft_ms: float, count: int = 300) -> list[RequestRecord]:
    """Requests far apart that all have the same TTFT."""
    first = int(ttft_ms * NS_PER_MS)
    return [
        make_record(
            [(i * 1000 * NS_PER_MS + first, 1), (i * 1000 * NS_PER_MS + 2 * first, 1)],
            index=i, t_sched=i * 1000 * NS_PER_MS, t_send=i * 1000 * NS_PER_MS, t_admit=i * 1000 * NS_PER_MS,
        )
        for i in range(count)
    ]  # fmt: skip


@pytest.fixture
def make_record() -> Callable[..., RequestRecord]:
    def make(chunks: list[tuple[int, int]], **changes: Any) -> RequestRecord:
        return RequestRecord(
            request_id=f"r{changes['index']}", phase="window", status="ok", finish_reason="length", error=None,
            t_first=chunks[0][0], t_last=chunks[-1][0], t_end=chunks[-1][0], prompt_tokens=10, max_tokens=2,
            output_tokens=2, first_chunk_tokens=1, cached_tokens=0, preemptions=0, recomputed_tokens=0, **changes,
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("base_ms", "new_ms", "verdict", "code"),
    [
        (100, 100, Verdict.SAME, 0),
        (100, 900, Verdict.WORSE, 1),
        (900, 100, Verdict.BETTER, 0),
        (900, 900, Verdict.SAME, 0),
    ],
)
def test_an_slo_that_was_met_and_is_proven_missed_is_worse(
    make_record: Callable[..., RequestRecord], base_ms: float, new_ms: float, verdict: Verdict, code: int
) -> None:
    slo = {"slo": "p95_ttft=500ms"}
    sides = [
        made_up_side(
            name, [made_up_run(s, "monday", answered(make_record, ms), change=slo, mean_ttft_ms=1.0) for s in (0, 1)]
        )
        for name, ms in (("base", base_ms), ("new", new_ms))
    ]
    diff = judge(*sides)
    assert diff.slo is not None
    assert (diff.slo.verdict, diff.exit_code) == (verdict, code)
    ruled = judge(*sides, rules=[parse_rule("mean_ttft>+5%")])
    assert ruled.exit_code == 0


def test_an_undecided_slo_is_the_same_as_long_as_it_leans_to_the_same_side(
    make_record: Callable[..., RequestRecord],
) -> None:
    def judged(slow: int) -> Diff:
        requests = answered(make_record, 100.0)
        few = answered(make_record, 100.0, 20 - slow) + answered(make_record, 900.0, 20)[20 - slow :]
        slo = {"slo": "p95_ttft=500ms"}
        return judge(
            made_up_side("base", [made_up_run(0, "m", requests, change=slo, mean_ttft_ms=1.0) for _ in range(3)]),
            made_up_side("new", [made_up_run(0, "m", few, change=slo, mean_ttft_ms=1.0)]),
        )

    leaning, missed = judged(0).slo, judged(3).slo
    assert leaning is not None
    assert missed is not None
    assert (leaning.base, leaning.new, leaning.verdict) == ("feasible", "undecided", Verdict.SAME)
    assert (missed.new, missed.verdict) == ("undecided", Verdict.CANNOT_TELL)


@given(
    st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=6),
    st.floats(-0.5, 0.5),
)
def test_swapping_the_sides_turns_every_verdict_around(noise: list[float], shift: float) -> None:
    ratios = [math.exp(shift + one) for one in noise]
    base, new = pairs(ratios)
    turned = {Verdict.WORSE: Verdict.BETTER, Verdict.BETTER: Verdict.WORSE}
    forth, back = line(judge(base, new)), line(judge(new, base))
    if forth.verdict in turned:
        assert back.verdict is turned[forth.verdict]
    assert forth.change is not None
    assert back.change is not None
    assert (1 + forth.change) * (1 + back.change) == pytest.approx(1.0)


@given(st.lists(st.floats(-0.05, 0.05), min_size=3, max_size=6), st.floats(0.0, 1.0))
def test_slower_still_is_never_judged_better(noise: list[float], more: float) -> None:
    ratios = [math.exp(one) for one in noise]
    order = [Verdict.BETTER, Verdict.SAME, Verdict.CANNOT_TELL, Verdict.WORSE]
    before, after = (line(judge(*pairs([r * f for r in ratios]))).verdict for f in (1.0, math.exp(more)))
    assert after is not Verdict.BETTER or before is Verdict.BETTER
    assert before is not Verdict.WORSE or after is Verdict.WORSE
    assert {before, after} <= set(order)


def noisy(rng: np.random.Generator, name: str, session: str, traffic: np.ndarray, factor: float = 1.0) -> Side:
    numbers = 100 * factor * np.exp(traffic + rng.normal(0, 0.04, traffic.shape))
    return made_up_side(
        name, [made_up_run(s, session, **dict(zip(KEYS, row, strict=True))) for s, row in enumerate(numbers)]
    )


@pytest.mark.parametrize("seed", [11, 12])
def test_equal_sides_raise_an_alarm_in_at_most_one_of_twenty_cases_over_all_metrics(seed: int) -> None:
    rng, trials = np.random.default_rng(seed), 300
    alarms = 0
    for _ in range(trials):
        traffic = rng.normal(0, 0.3, (5, len(KEYS)))
        diff = judge(noisy(rng, "base", "m", traffic), noisy(rng, "new", "m", traffic))
        alarms += diff.exit_code == 1
    # Five per cent, and three standard errors of so many trials.
    assert alarms / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials), f"seed {seed}: {alarms} of {trials}"


@pytest.mark.parametrize("seed", [21])
def test_a_slowdown_well_above_the_noise_is_found(seed: int) -> None:
    rng, trials = np.random.default_rng(seed), 100
    found = 0
    for _ in range(trials):
        traffic = rng.normal(0, 0.3, (6, len(KEYS)))
        found += judge(noisy(rng, "base", "m", traffic), noisy(rng, "new", "m", traffic, 1.15)).exit_code == 1
    assert found / trials >= 0.9, f"seed {seed}: {found} of {trials}"
