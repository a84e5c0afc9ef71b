"""What a person sees while a study runs, with and without a terminal."""

import io
import re

import pytest
from rich.console import Console

from tuner.progress import ProgressDisplay
from workloads.driver import Progress

HALF_WAY = Progress(phase="window", elapsed_s=5.0, planned_s=10.0, ended=3, under_way=7)


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)


def written(display: ProgressDisplay) -> str:
    assert isinstance(display.console.file, io.StringIO)
    return display.console.file.getvalue()


def test_without_a_terminal_only_the_lines_that_stay_are_written() -> None:
    display = ProgressDisplay(console(terminal=False))
    with display.live():
        update = display.run_started("baseline")
        update(HALF_WAY)
        display.say("baseline held [4 requests/s]")
        display.run_ended()
    assert re.fullmatch(r"\[ +\ds\] baseline held \[4 requests/s\]\n+", written(display))


def test_a_long_line_is_never_broken_and_markup_stays_as_it_is() -> None:
    display = ProgressDisplay(console(terminal=False))
    text = "word " * 100 + "[bold]end[/bold]"
    display.say(text)
    assert written(display).endswith(f"{text}\n")


def test_progress_outside_the_live_display_is_ignored() -> None:
    display = ProgressDisplay(console(terminal=False))
    display.run_started("bench")(HALF_WAY)
    display.run_ended()
    assert written(display) == ""


@pytest.mark.parametrize(("left_s", "shown"), [(None, False), (125.0, True)])
def test_on_a_terminal_the_moving_line_tells_phase_requests_and_time_left(left_s: float | None, shown: bool) -> None:
    display = ProgressDisplay(console(terminal=True), lambda: left_s)
    display.best = "best 4.2 good/s"
    with display.live():
        display.run_started("trial3 at 4 requests/s")(HALF_WAY)
        assert display._bar is not None
        display._bar.refresh()
    text = written(display)
    for part in ("trial3 at 4 requests/s", "window", "7 under way", "best 4.2 good/s"):
        assert part in text
    assert ("2m 05s left" in text) is shown


def test_a_new_run_takes_the_place_of_the_one_before() -> None:
    display = ProgressDisplay(console(terminal=True))
    with display.live():
        display.run_started("first")
        display.run_started("second")
        assert display._bar is not None
        assert [task.description for task in display._bar.tasks] == ["second"]
        display.run_ended()
        assert not display._bar.tasks
