"""How a diff is shown: terminal, Markdown, JSON, JUnit XML and GitHub annotations say the same."""

import io
import json
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from rich.console import Console

from reports.diff.annotations import to_annotations
from reports.diff.diff import Diff
from reports.diff.json_form import to_json
from reports.diff.judge import judge
from reports.diff.junit import to_junit
from reports.diff.markdown import to_markdown
from reports.diff.rules import parse_rule
from reports.diff.side import Side
from reports.diff.terminal import to_terminal
from reports.diff.text import headline
from tests.reports.conftest import DEFAULTS
from tests.reports.made_up_sides import made_up_run, made_up_side


def two_sided(factor: float, name: str = "candidate", **change: Any) -> tuple[Side, Side]:
    def side(label: str, by: float, more: dict[str, Any]) -> Side:
        runs = [
            made_up_run(s, change=more, mean_ttft_ms=(100 + s) * by, mean_tpot_ms=10.0, output_throughput=50.0 + s)
            for s in range(4)
        ]
        return made_up_side(label, runs)

    return side("main", 1.0, {}), side(name, factor, {"settings": DEFAULTS | {"max_num_seqs": 8}} | change)


@pytest.fixture
def worse() -> Diff:
    return judge(*two_sided(1.25))


@pytest.fixture
def unknown() -> Diff:
    base, new = two_sided(1.25)
    return judge(made_up_side("main", base.runs[:1]), made_up_side("candidate", new.runs[:1]))


@pytest.fixture
def fine() -> Diff:
    return judge(*two_sided(1.0))


def printed(diff: Diff, width: int) -> str:
    out = io.StringIO()
    to_terminal(diff, Console(file=out, width=width, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_says_the_verdict_first_and_fits(worse: Diff, width: int) -> None:
    lines = printed(worse, width).splitlines()
    assert lines[0].startswith("Regression: candidate is worse than main: mean TTFT +25.0%")
    assert max(map(len, lines)) <= width
    (row,) = [line for line in lines if line.startswith("mean TTFT")]
    assert row.split()[-1] == "worse"
    assert any(line.split() == ["max_num_seqs", "256", "8"] for line in lines)


def test_each_overall_verdict_has_a_headline_of_its_own(worse: Diff, unknown: Diff, fine: Diff) -> None:
    assert headline(worse).sentence.startswith("Regression")
    assert headline(unknown).sentence.startswith("Cannot tell")
    assert headline(fine).sentence == "No regression: candidate is the same as main within 10% in what is judged."
    better = judge(*two_sided(0.7))
    assert "better than main: mean TTFT −30.0%" in headline(better).sentence
    ruled = judge(*two_sided(1.0), rules=[parse_rule("mean_ttft>+5%")])
    assert headline(ruled).sentence == "No regression: candidate stays within every limit given."


def test_the_reason_for_not_telling_is_given_once(unknown: Diff) -> None:
    text = " ".join(printed(unknown, 80).split())
    assert text.count("how much the machine varies from run to run is not known") == 1


def test_markdown_folds_away_all_but_what_is_judged(worse: Diff) -> None:
    text = to_markdown(worse)
    before, _, folded = text.partition("<details>")
    assert before.startswith("### ❌ Regression")
    assert "| mean TTFT | 101 ms | 127 ms | +25.0%" in before
    assert "max_num_seqs" not in before
    assert "max_num_seqs" in folded
    assert len(before.splitlines()) < 20


def test_names_cannot_act_as_markdown_or_end_an_annotation() -> None:
    diff = judge(*two_sided(1.25, name="<b>@you</b>\n::error::%"))
    assert "<b>" not in to_markdown(diff).partition("<details>")[0]
    for line in to_annotations(diff):
        assert "\n" not in line
        assert "%" not in line.replace("%25", "").replace("%3A", "").replace("%2C", "")


def test_json_holds_every_line_and_no_number_that_json_lacks(worse: Diff, unknown: Diff) -> None:
    content = to_json(worse)
    assert (content["kind"], content["exit_code"], content["schema_version"]) == ("diff", 1, 2)
    (ttft,) = [line for line in content["lines"] if line["metric"] == "mean_ttft"]
    assert ttft["verdict"] == "worse"
    assert ttft["change"] == pytest.approx(0.25)
    assert (ttft["unit"], ttft["gated"], ttft["design"], ttft["freedom"]) == ("ms", True, "paired", 3)
    assert content["differences"]["settings"] == [{"part": "settings", "what": "max_num_seqs", "base": 256, "new": 8}]
    assert [run["seed"] for run in content["new"]["runs"]] == [0, 1, 2, 3]
    for diff in (worse, unknown):
        json.dumps(to_json(diff), allow_nan=False)


def test_junit_fails_what_is_worse_and_skips_what_was_not_decided(worse: Diff, unknown: Diff) -> None:
    suite = ET.fromstring(to_junit(worse)).find("testsuite")
    assert suite is not None
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "0")
    failure = cases["mean_ttft"].find("failure")
    assert failure is not None
    assert "+25.0%" in (failure.get("message") or "")
    assert cases["mean_tpot"].find("failure") is None
    undecided = ET.fromstring(to_junit(unknown)).find("testsuite")
    assert undecided is not None
    assert (undecided.get("failures"), undecided.get("skipped")) == ("0", "3")


def test_annotations_are_errors_warnings_and_notices(worse: Diff, unknown: Diff, fine: Diff) -> None:
    assert [line.split(" ")[0] for line in to_annotations(worse)] == ["::error", "::error"]
    assert {line.split(" ")[0] for line in to_annotations(unknown)} == {"::warning"}
    assert [line.split(" ")[0] for line in to_annotations(fine)] == ["::notice"]


def test_a_run_that_was_left_out_is_named_everywhere() -> None:
    base, new = two_sided(1.0)
    bad = made_up_run(9, change={"stopped_early": "interrupted"}, mean_ttft_ms=1.0)
    diff = judge(base, made_up_side("candidate", [*new.runs, bad]))
    named = "candidate, seed 9: stopped early: interrupted"
    assert named in " ".join(printed(diff, 80).split())
    assert named in to_markdown(diff)
    assert named in to_junit(diff)
    assert named in to_json(diff)["distrust"]
    assert headline(diff).sentence.startswith("Cannot tell")
