"""A device's gaps laid over what the host did meanwhile."""

from dataclasses import fields
from typing import Any

import pytest

from engine.trace import IterationRecord, Phase, PhaseMark
from reports.host_profile import ELSEWHERE, HostProfile, host_profile, profile_markdown

US = 1000


def record(iteration: int, gap_us: int, device_time_ns: int | None = 1) -> IterationRecord:
    values: dict[str, Any] = dict.fromkeys((f.name for f in fields(IterationRecord)), 0)
    return IterationRecord(**values | {"iteration": iteration, "gap_ns": gap_us * US, "device_time_ns": device_time_ns})


def mark(iteration: int, phase: Phase, begin_us: int, end_us: int) -> PhaseMark:
    return PhaseMark(iteration, phase, begin_us * US, end_us * US)


def by_name(profile: HostProfile) -> dict[str, tuple[int, int]]:
    return {phase.name: (phase.total_ns // US, phase.idle_ns // US) for phase in profile.phases}


def test_a_gap_ends_where_the_launch_begins_and_lies_over_what_came_before() -> None:
    marks = [
        mark(4, Phase.READ_BACK, 0, 100),
        mark(4, Phase.SCHEDULE, 100, 120),
        mark(5, Phase.SCHEDULE, 130, 160),
        mark(5, Phase.INPUT_BATCH, 160, 190),
        mark(5, Phase.LAUNCH, 190, 240),
        mark(5, Phase.READ_BACK, 240, 300),
    ]
    profile = host_profile(marks, [record(4, 0), record(5, 110)])
    assert profile is not None
    assert (profile.steps, profile.span_ns, profile.idle_ns, profile.on_cpu) == (1, 300 * US, 110 * US, False)
    assert by_name(profile) == {
        "schedule": (50, 50),
        "input batch": (30, 30),
        "launch": (50, 0),
        "sampling": (0, 0),
        "read-back": (160, 20),
        ELSEWHERE: (10, 10),
    }


def test_a_step_launched_ahead_leaves_no_gap() -> None:
    marks = [mark(1, Phase.LAUNCH, 0, 50), mark(2, Phase.LAUNCH, 60, 100), mark(1, Phase.READ_BACK, 100, 400)]
    profile = host_profile(marks, [record(1, 0), record(2, 0)])
    assert profile is not None
    assert (profile.steps, profile.idle_ns) == (2, 0)
    assert all(phase.idle_ns == 0 for phase in profile.phases)
    assert "| launch | 0.045 | 22.5 % | – |" in profile_markdown(profile)


def test_on_the_cpu_the_step_itself_begins_with_its_input() -> None:
    marks = [mark(1, Phase.SCHEDULE, 0, 40), mark(1, Phase.INPUT_BATCH, 50, 60), mark(1, Phase.LAUNCH, 60, 100)]
    profile = host_profile(marks, [record(1, 50, device_time_ns=None)])
    assert profile is not None
    assert profile.on_cpu
    assert by_name(profile)["schedule"] == (40, 40)
    assert by_name(profile)[ELSEWHERE] == (10, 10)
    assert "model's arithmetic" in profile_markdown(profile)


@pytest.mark.parametrize("marks", [[], [mark(9, Phase.LAUNCH, 0, 1)]])
def test_without_a_step_of_the_run_there_is_no_profile(marks: list[PhaseMark]) -> None:
    assert host_profile(marks, [record(1, 0)]) is None
