"""The dry run goes through every part, on the CPU with interpreted kernels, and leaves what a real one leaves."""

import json
from pathlib import Path

import pytest

from scripts import gpu_check
from scripts.gpu_proof.parts import PARTS

pytest.importorskip("triton")

ROWS = {
    1: {"what", "found", "ok"},
    2: {"what", "found"},
    4: {"what", "found"},
    5: {"model", "mode", "batch", "step_s", "host_ms", "phases_ms", "idle_share"},
    6: {"temperature", "output_tokens_per_s"},
    7: {"seconds", "state", "trials", "best"},
}
VALUES = {
    1: {"dtype", "tolerance", "interpreted"},
    2: {"copy_gb_per_s", "product_tflops"},
    3: {"copy_gb_per_s", "counts", "model"},
    4: {"product_tflops", "counts", "model"},
    5: {"goal_model", "host_counts", "idle_counts"},
    6: {"output_tokens", "published"},
    7: {"command", "folder", "tune_exit_code"},
}


def test_a_dry_run_goes_through_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dry.json"
    code = gpu_check.main(["--dry-run", "--out", str(out)])
    results = json.loads(out.read_text(encoding="utf-8"))
    parts = {int(number): part for number, part in results["parts"].items()}
    assert {number: (part["state"], part["stderr"]) for number, part in parts.items()} == dict.fromkeys(
        PARTS, ("done", None)
    )
    assert code == 0
    assert results.keys() == {
        *("schema_version", "kind", "created", "dry_run", "card", "environment", "parts", "goals", "total_s")
    }
    assert (results["kind"], results["dry_run"], results["card"]["name"]) == ("gpu_check", True, None)
    assert {"torch", "triton", "git_commit", "python"} <= results["environment"].keys()
    for number, part in parts.items():
        assert part["rows"], PARTS[number].title
        assert VALUES[number] <= part.keys()
        for row in part["rows"]:
            assert ROWS.get(number, set()) <= row.keys()
    assert all(row["ok"] for row in parts[1]["rows"])
    assert {row["batch"] for row in parts[3]["rows"] if "batch" in row} == {1, 2}
    assert len({(row["model"], row["mode"]) for row in parts[5]["rows"]}) == 8
    assert [goal["met"] for goal in results["goals"]] == [True]
    folder = tmp_path / parts[7]["folder"]
    assert (folder / "report.html").exists()
    assert "figures mean nothing" in capsys.readouterr().out
