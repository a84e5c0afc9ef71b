"""One part that goes wrong takes nothing from the others, and nothing of what it had measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts import gpu_check
from scripts.gpu_proof import launcher
from scripts.gpu_proof.parts import PARTS, Part


def part(name: str) -> Part:
    return Part(name, f"tests.gpu_proof.part_{name}", limit_s=100)


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *names: str, options: tuple[str, ...] = ()) -> tuple[int, Any]:
    """The exit code, and the JSON."""
    # Numbers without a meaning, so that no goal is looked for in them.
    parts = {number: part(name) for number, name in enumerate(names, 101)}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    code = gpu_check.main(["--dry-run", "--out", str(out), *options])
    return code, json.loads(out.read_text(encoding="utf-8"))


def test_a_part_that_fails_leaves_its_traceback_and_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, results = run(monkeypatch, tmp_path / "card.json", "that_fails", "that_dies", "that_works")
    failed, died, worked = results["parts"].values()
    assert code == 1
    assert failed["state"] == "failed"
    assert "ArithmeticError: the second was [/not]" in failed["error"]
    assert "[/not]" in capsys.readouterr().out
    assert [row["figure"] for row in failed["rows"]] == [1]
    assert failed["copy_gb_per_s"] == 7.0
    assert (died["state"], died["exit_code"]) == ("died", -6)
    assert [row["figure"] for row in died["rows"]] == [1]
    assert (worked["state"], worked["error"], worked["stderr"]) == ("done", None, None)
    assert [row["found"] for row in worked["rows"]] == ["on cpu"]


def test_an_attempt_that_fails_is_a_row_and_the_part_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, results = run(monkeypatch, tmp_path / "card.json", "with_attempts")
    part = results["parts"]["101"]
    assert (code, part["state"]) == (1, "failed")
    assert [row["ok"] for row in part["rows"]] == [True, False, True]
    assert part["rows"][1]["found"] == "failed: ZeroDivisionError: division by zero"
    assert part["rows"][1]["error"] == part["error"]


def test_a_part_that_takes_too_long_is_stopped_and_keeps_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, results = run(monkeypatch, tmp_path / "card.json", "without_end", options=("--limit-s", "4"))
    stopped = results["parts"]["101"]
    assert code == 1
    assert (stopped["state"], stopped["limit_s"]) == ("out of time", 4)
    assert [row["figure"] for row in stopped["rows"]] == [1]
    assert "KeyboardInterrupt" in stopped["error"]


def test_after_ctrl_c_what_was_measured_is_kept_and_no_part_follows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = launcher.run_part

    def interrupted(one: Part, **options: Any) -> dict[str, Any]:
        return real(one, **options) | {"state": launcher.INTERRUPTED}

    monkeypatch.setattr(gpu_check, "run_part", interrupted)
    code, results = run(monkeypatch, tmp_path / "card.json", "that_works", "that_fails")
    assert code == 130
    assert [part["title"] for part in results["parts"].values()] == ["that_works"]


def test_the_file_is_whole_after_every_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "card.json"
    seen: list[int] = []
    real = launcher.run_part

    def looked_at(one: Part, **options: Any) -> dict[str, Any]:
        seen.append(len(json.loads(out.read_text(encoding="utf-8"))["parts"]) if out.exists() else 0)
        return real(one, **options)

    monkeypatch.setattr(gpu_check, "run_part", looked_at)
    run(monkeypatch, out, "that_works", "that_works")
    assert seen == [0, 1]


def test_all_limits_together_stay_within_eight_minutes() -> None:
    assert sum(part.limit_s for part in PARTS.values()) <= 480


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "there is no GPU to measure" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--parts", "1,9"), "'9' is no part"),
        (("--parts", "fast"), "'fast' is no part"),
        (("--limit-s", "0"), "--limit-s 0 is not possible"),
        (("--out", "card.txt"), "must end with .json"),
        (("--out", "pyproject.json"), "exists already"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    options: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.json").write_text("{}")
    assert gpu_check.main(["--dry-run", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_card_is_named_after_itself_and_nothing_is_written_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_check, "RESULTS", tmp_path)
    first = gpu_check.result_path(None, "NVIDIA H200", dry_run=False)
    assert first == tmp_path / "nvidia-h200.json"
    first.touch()
    assert gpu_check.result_path(None, "NVIDIA H200", dry_run=False) == tmp_path / "nvidia-h200-2.json"


def test_parts_are_chosen_by_number() -> None:
    assert gpu_check.chosen_parts("3, 1,3") == [1, 3]
    assert gpu_check.chosen_parts(None) == list(PARTS)
