"""What a run says of each of its classes, and of waiting, worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.request import RequestEvent
from engine.trace import IterationRecord
from workloads.metrics import Window, summarize, summarize_classes
from workloads.records import RequestRecord
from workloads.slo import parse_slo
from workloads.waits import WAIT_CAUSES

MS = 1_000_000
S = 1_000_000_000
SLO = parse_slo(["p95_ttft=1s"])
WINDOW = Window(0, 10 * S)

WAITS = {f"mean_wait_{cause}_ms" for cause in WAIT_CAUSES} | {"preempted_wait_s"}


def step(t_start: int, **changes: Any) -> IterationRecord:
    names = (name for name in IterationRecord.__dataclass_fields__ if name not in ("wait_cause", "blocked_request"))
    return IterationRecord(**dict.fromkeys(names, 0) | {"t_start": t_start, "t_end": t_start + 1} | changes)


STEPS = [
    step(0, wait_cause="blocks", blocked_request="req-1"),
    step(2 * S, wait_cause="seats"),
    step(4 * S),
]


@pytest.fixture
def requests(make_record: Callable[..., RequestRecord]) -> list[RequestRecord]:
    """Two classes: `chat` with a good, a slow and a shed request, `batch` with a swapped and a timed-out one."""
    preempted = (RequestEvent(3 * S, "preempted", 12, 2, "swap:req-0"), RequestEvent(5 * S, "admitted", 12, 2, "swap"))
    chat: dict[str, Any] = {"class_name": "chat"}
    batch: dict[str, Any] = {"class_name": "batch", "priority": 1}
    return [
        make_record(
            [(500 * MS, 1), (700 * MS, 3)], index=0, recomputed_tokens=6, cached_tokens=1, preemptions=1, **chat
        ),
        make_record([(5 * S, 1)], index=1, t_admit=4 * S, **chat),
        make_record([], index=2, status="shed", t_admit=None, t_end=0, **chat),
        make_record([(1 * S, 2)], index=3, preemptions=2, preemptions_swap=1, history=preempted, **batch),
        make_record(
            [], index=4, status="timeout", recomputed_tokens=2, t_admit=3 * S, t_end=9 * S,
            history=(RequestEvent(3 * S, "chunk", 5), RequestEvent(4 * S, "chunk", 3)), **batch,
        ),
        make_record(index=5, phase="warmup", class_name="never", priority=-1),
    ]  # fmt: skip


def test_each_class_has_the_numbers_of_its_own_requests(requests: list[RequestRecord]) -> None:
    classes = summarize_classes(requests, STEPS, WINDOW, SLO)
    assert list(classes) == ["never", "chat", "batch"]
    chat, batch = classes["chat"], classes["batch"]
    assert (chat["priority"], batch["priority"]) == (0, 1)
    assert (chat["requests"], chat["completed"], chat["good_requests"]) == (3, 2, 1)
    assert (batch["requests"], batch["completed"], batch["good_requests"]) == (2, 1, 1)
    assert (chat["num_shed"], chat["num_queue_timeouts"], chat["num_timeouts"]) == (1, 0, 0)
    assert (batch["num_shed"], batch["num_queue_timeouts"], batch["num_timeouts"]) == (0, 0, 1)
    assert (chat["preemptions"], chat["preemptions_swap"]) == (1, 0)
    assert (batch["preemptions"], batch["preemptions_swap"]) == (2, 1)
    assert (chat["output_throughput"], batch["output_throughput"]) == (0.5, 0.2)
    assert (chat["mean_ttft_ms"], batch["max_ttft_ms"]) == (2750, 1000)
    assert chat["mean_e2el_ms"] == (700 + 5000) / 2
    assert batch["p99_tpot_ms"] is None


def test_recomputed_tokens_are_a_share_of_all_that_were_computed_for_the_class(requests: list[RequestRecord]) -> None:
    classes = summarize_classes(requests, STEPS, WINDOW, SLO)
    # 13 known tokens of which one was cached, and six again; ten; none.
    assert classes["chat"]["recomputed_tokens"] == 6
    assert classes["chat"]["recomputed_share"] == 6 / (13 - 1 + 6 + 10)
    # Eleven known tokens; eight in chunks before the end.
    assert classes["batch"]["recomputed_share"] == 2 / (11 + 8)


def test_the_longest_wait_is_that_of_any_request_whatever_became_of_it(
    make_record: Callable[..., RequestRecord],
) -> None:
    records = [
        make_record([(3 * S, 1)], index=0, t_sched=1 * S, t_admit=2 * S),
        make_record([], index=1, status="queue_timeout", t_sched=1 * S, t_admit=None, t_end=9 * S),
        make_record([], index=2, status="timeout", t_sched=2 * S, t_admit=9 * S, t_end=20 * S, class_name="other"),
        make_record([], index=3, phase="warmup", t_sched=0, t_admit=9 * S),
        make_record([], index=4, status="failed", t_send=None, t_admit=None, t_end=None, class_name="silent"),
    ]
    classes = summarize_classes(records, STEPS, WINDOW)
    assert summarize(records, STEPS, WINDOW)["max_wait_ms"] == 8000
    assert {name: numbers["max_wait_ms"] for name, numbers in classes.items()} == {
        "all": 8000, "other": 7000, "silent": None
    }  # fmt: skip


def test_the_waits_of_a_class_are_those_of_its_requests(requests: list[RequestRecord]) -> None:
    classes = summarize_classes(requests, STEPS, WINDOW, SLO)
    chat = {cause: classes["chat"][f"mean_wait_{cause}_ms"] for cause in WAIT_CAUSES}
    batch = {cause: classes["batch"][f"mean_wait_{cause}_ms"] for cause in WAIT_CAUSES}
    assert chat == dict.fromkeys(WAIT_CAUSES, 0.0) | {"blocks": 2000 / 3, "seats": 2000 / 3}
    assert batch == dict.fromkeys(WAIT_CAUSES, 0.0) | {"behind_head": 1000, "seats": 1000, "step": 500}
    assert (classes["chat"]["preempted_wait_s"], classes["batch"]["preempted_wait_s"]) == (0.0, 2.0)
    assert summarize(requests, STEPS, WINDOW, SLO)["preempted_wait_s"] == 2.0


def test_a_class_that_sent_nothing_in_the_window_has_nothing_measured(requests: list[RequestRecord]) -> None:
    never = summarize_classes(requests, STEPS, WINDOW)["never"]
    assert (never["requests"], never["completed"], never["preemptions"]) == (0, 0, 0)
    assert {never[key] for key in ("good_requests", "recomputed_share", "mean_ttft_ms", "mean_wait_seats_ms")} == {None}


def test_a_workload_without_classes_has_one_that_says_what_the_summary_says(
    make_record: Callable[..., RequestRecord],
) -> None:
    records = [make_record(index=i, t_sched=i * S, t_admit=i * S + 5 * MS) for i in range(4)]
    classes, summary = summarize_classes(records, STEPS, WINDOW, SLO), summarize(records, STEPS, WINDOW, SLO)
    assert list(classes) == ["all"]
    shared = classes["all"].keys() & summary.keys()
    assert {
        f"{statistic}_{name}_ms" for statistic in ("mean", "p99") for name in ("ttft", "tpot", "e2el", "queue")
    } <= shared
    assert shared >= WAITS | {"completed", "good_requests", "output_throughput", "num_shed", "max_wait_ms"}
    by_request = {key: classes["all"][key] for key in shared - {"recomputed_share"}}
    assert by_request == {key: summary[key] for key in by_request}
