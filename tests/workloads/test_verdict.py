"""Verdicts: exact intervals, what counts as a miss, and when a run is settled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import binomtest

from workloads.bounds import parse_bound
from workloads.intervals import effective_size
from workloads.slo import parse_slo
from workloads.verdict import fatal_misses, judge_bound

MS = 1_000_000


def spread(met, missed):
    """TTFTs in milliseconds, the late ones at even distances: none follows from the one before."""
    total = met + missed
    return [900 if (i + 1) * missed // total > i * missed // total else 100 for i in range(total)]


@pytest.fixture
def window(make_record):
    """`met` requests with a TTFT of 100 ms and `missed` with one of 900 ms, spread evenly."""

    def make(met, missed):
        return [make_record([(t * MS, 1), ((t + 10) * MS, 1)], index=i) for i, t in enumerate(spread(met, missed))]

    return make


@pytest.mark.parametrize(("met", "missed"), [(100, 0), (95, 5), (40, 3), (0, 7), (300, 1)])
def test_the_interval_of_a_share_is_that_of_clopper_and_pearson(window, met, missed):
    verdict = judge_bound(parse_bound("p95_ttft=500ms"), window(met, missed))
    exact = binomtest(met, met + missed).proportion_ci(0.95, method="exact")
    assert (verdict.share_low, verdict.share_high) == pytest.approx((exact.low, exact.high))
    assert verdict.met_share == pytest.approx(met / (met + missed))


@pytest.mark.parametrize(
    ("met", "missed", "state", "meets"),
    [
        (58, 0, "undecided", True),
        (59, 0, "feasible", True),
        (95, 5, "undecided", True),
        (94, 6, "undecided", False),
        (80, 20, "infeasible", False),
        (990, 10, "feasible", True),
    ],
)
def test_a_share_is_decided_by_its_one_sided_limits(window, met, missed, state, meets):
    verdict = judge_bound(parse_bound("p95_ttft=500ms"), window(met, missed))
    assert (verdict.state, verdict.meets) == (state, meets)


def test_the_observed_quantile_lies_within_the_bound_exactly_when_enough_requests_do(window):
    bound = parse_bound("p95_ttft=500ms")
    assert judge_bound(bound, window(95, 5)).observed_ns == 100 * MS
    assert judge_bound(bound, window(94, 6)).observed_ns == 900 * MS


@pytest.mark.parametrize("status", ["refused", "shed", "queue_timeout", "timeout", "failed"])
def test_a_request_that_did_not_end_well_is_a_miss_of_every_bound(window, make_record, status):
    lost = [make_record(status=status, index=100 + i) for i in range(10)]
    for metric in ("ttft", "tpot", "itl", "e2e", "queue"):
        verdict = judge_bound(parse_bound(f"p95_{metric}=10s"), window(90, 0) + lost)
        assert not verdict.meets, metric
        assert verdict.observed_ns is None, metric


def test_the_stop_of_a_run_undoes_nothing_of_what_was_known_of_a_request(window, make_record):
    records = window(90, 0) + [make_record([], status="timeout", t_admit=None)] * 10
    cut_short = [make_record(status="unfinished", index=200 + i) for i in range(100)]
    shares = {
        metric: judge_bound(parse_bound(f"p95_{metric}=10s"), records + cut_short).met_share
        for metric in ("ttft", "queue", "tpot", "e2e")
    }
    # Its TTFT and queue time are known; its TPOT is not, and neither good nor bad; its E2E may be too long already.
    assert shares == {"ttft": 190 / 200, "queue": 190 / 200, "tpot": 90 / 100, "e2e": 90 / 200}
    late = [make_record([(11 * 1000 * MS, 1)], status="unfinished", index=200 + i) for i in range(100)]
    assert judge_bound(parse_bound("p95_ttft=10s"), records + late).met_share == 90 / 200
    gaps = judge_bound(parse_bound("p95_itl=150ms"), window(90, 0) + cut_short)
    assert gaps.met_share == 1.0


def test_a_request_that_waits_as_the_run_is_stopped_is_a_miss_of_every_bound(window, make_record):
    waiting = [make_record([], status="unfinished", t_admit=None, max_tokens=2, index=200 + i) for i in range(10)]
    for metric in ("ttft", "tpot", "itl", "e2e", "queue"):
        assert not judge_bound(parse_bound(f"p95_{metric}=10s"), window(90, 0) + waiting).meets, metric


def test_a_request_without_any_token_is_a_miss_of_ttft(window, make_record):
    verdict = judge_bound(parse_bound("p50_ttft=1s"), [*window(1, 0), make_record([])])
    assert verdict.met_share == 0.5


def test_a_request_of_one_token_has_no_tpot_and_is_no_miss(window, make_record):
    verdict = judge_bound(parse_bound("p95_tpot=20ms"), window(59, 0) + [make_record([(100 * MS, 1)])] * 50)
    assert (verdict.state, verdict.met_share) == ("feasible", 1.0)


def test_only_requests_scheduled_in_the_window_count(window, make_record):
    others = [make_record([(900 * MS, 1)], phase=phase) for phase in ("warmup", "cooldown") for _ in range(50)]
    assert judge_bound(parse_bound("p95_ttft=500ms"), window(60, 0) + others).met_share == 1.0


def test_max_judges_the_window_itself(window):
    bound = parse_bound("max_ttft=500ms")
    assert judge_bound(bound, window(3, 0)).state == "feasible"
    assert judge_bound(bound, window(300, 1)).state == "infeasible"
    assert judge_bound(bound, []).state == "undecided"


def test_a_mean_is_decided_by_students_t_and_lost_by_a_request_without_a_value(window, make_record):
    records = window(50, 50)  # mean TTFT 500 ms, standard error about 40 ms
    states = [judge_bound(parse_bound(f"mean_ttft={b}ms"), records).state for b in (400, 520, 600)]
    assert states == ["infeasible", "undecided", "feasible"]
    assert judge_bound(parse_bound("mean_ttft=520ms"), records).observed_ns == 500 * MS
    assert judge_bound(parse_bound("mean_ttft=10s"), [*records, make_record(status="timeout")]).state == "infeasible"


def test_no_requests_decide_nothing():
    verdict = parse_slo(["p95_ttft=1s,mean_e2e=1s"]).judge([])
    assert (verdict.state, verdict.meets) == ("undecided", False)


def test_gaps_of_one_request_are_weaker_evidence_than_gaps_of_many(make_record):
    bound = parse_bound("p95_itl=15ms")
    few = [make_record([(i * 10 * MS, 1) for i in range(200)], index=n) for n in range(3)]
    many = [make_record([(i * 10 * MS, 1) for i in range(10)], index=n) for n in range(60)]
    assert judge_bound(bound, few).state == "undecided"
    assert judge_bound(bound, many).state == "feasible"


def test_misses_in_a_row_tell_less_than_misses_here_and_there(window, make_record):
    bound = parse_bound("p95_ttft=500ms")
    in_a_row = [make_record([((900 if i < 40 else 100) * MS, 1)], index=i) for i in range(400)]
    apart, together = judge_bound(bound, window(360, 40)), judge_bound(bound, in_a_row)
    assert apart.met_share == together.met_share == 0.9
    assert (apart.state, together.state) == ("infeasible", "undecided")
    assert together.share_low is not None
    assert together.share_high is not None
    assert apart.share_low is not None
    assert apart.share_high is not None
    assert together.share_low < apart.share_low < apart.share_high < together.share_high
    assert not together.meets


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_are_late_together_need_more_of_them_even_where_none_is_late(make_record, seed):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(70)
    independent, walk = 100 + 5 * noise, 100 + 5 * lfilter([1.0], [1.0, -0.9], noise)
    # Just above all of them: far above, their distance would decide.
    bounds = [parse_bound(f"p95_ttft={ttfts.max() + 1:.0f}ms") for ttfts in (independent, walk)]
    states = [
        judge_bound(bound, [make_record([(int(t * MS), 1)], index=i) for i, t in enumerate(ttfts)]).state
        for bound, ttfts in zip(bounds, (independent, walk), strict=True)
    ]
    assert states == ["feasible", "undecided"]


@pytest.mark.parametrize("percent", [90, 95, 99])
def test_a_window_of_misses_alone_is_infeasible_however_they_depend_on_each_other(make_record, percent):
    growing = [make_record([((900 + i) * MS, 1)], index=i) for i in range(100)]
    assert judge_bound(parse_bound(f"p{percent}_ttft=500ms"), growing).state == "infeasible"


@pytest.mark.parametrize("seed", range(3))
def test_the_effective_size_is_near_the_gaps_when_requests_are_alike_and_near_the_requests_when_they_are_not(seed):
    rng = np.random.RandomState(seed)
    alike = rng.binomial(50, 0.9, 200).tolist()
    all_or_nothing = (50 * rng.binomial(1, 0.9, 200)).tolist()
    assert effective_size(alike, [50] * 200) > 6_000
    assert effective_size(all_or_nothing, [50] * 200) == pytest.approx(200, rel=0.05)


def test_an_slo_is_infeasible_with_one_bound_and_feasible_with_all(window):
    records = window(60, 0)
    assert parse_slo(["p95_ttft=1s,p95_tpot=1s"]).judge(records).state == "feasible"
    assert parse_slo(["p95_ttft=1s,p95_tpot=1ms"]).judge(records).state == "infeasible"
    assert parse_slo(["p95_ttft=1s,p99_tpot=1s"]).judge(records).state == "undecided"


def test_the_dict_has_the_keys_of_the_record(window):
    verdict = parse_slo(["p95_ttft=500ms"]).judge(window(95, 5)).to_dict()
    bound = verdict["bounds"][0]
    assert set(verdict) == {"state", "bounds"}
    assert bound["text"] == "p95_ttft<=500ms"
    assert (bound["bound_ms"], bound["observed_ms"], bound["required_share"]) == (500.0, 100.0, 0.95)


def misses_of(make_record, missed, total):
    return [make_record([(t * MS, 1)], index=i) for i, t in enumerate(spread(total - missed, missed))]


@given(total=st.integers(1, 400), percent=st.sampled_from([50, 90, 95, 99, 99.9]))
def test_fatal_misses_are_the_fewest_that_the_rest_of_the_window_cannot_mend(make_record, total, percent):
    bound = parse_bound(f"p{percent}_ttft=500ms")
    fatal = fatal_misses(bound, total)
    if fatal is None:
        assert judge_bound(bound, misses_of(make_record, total, total)).state != "infeasible"
        return
    assert judge_bound(bound, misses_of(make_record, fatal, total)).state == "infeasible"
    assert judge_bound(bound, misses_of(make_record, fatal - 1, total)).state != "infeasible"


@given(total=st.integers(20, 300), cut=st.floats(0, 1))
def test_a_settled_run_has_missed_by_what_it_has_seen_alone(make_record, total, cut):
    bound = parse_bound("p95_ttft=500ms")
    fatal = fatal_misses(bound, total)
    assert fatal is not None
    seen = fatal + int(cut * (total - fatal))
    assert not judge_bound(bound, misses_of(make_record, fatal, seen)).meets


def test_one_miss_settles_a_max_and_a_mean_but_no_quantile_of_gaps():
    assert fatal_misses(parse_bound("max_itl=1s"), 100) == 1
    assert fatal_misses(parse_bound("mean_ttft=1s"), 100) == 1
    assert fatal_misses(parse_bound("p99_itl=1s"), 100) is None
