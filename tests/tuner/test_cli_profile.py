"""`tune profile` on the CPU: a run with a trace and a table of the host's time beside it."""

import gzip
import json
from pathlib import Path

import pytest

from tuner.cli.main import main

FAST = ["--model", "random:tiny", "--device", "cpu", "--rate", "4", "--warmup", "0", "--prompt-tokens", "8"]
FAST += ["--output-tokens", "4", "--workload", "chat-small"]


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["profile", *arguments])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_a_profile_has_a_trace_and_a_table_of_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run(*FAST, "--window", "6s", "--profile-time", "1s", "--out", str(folder)) == 0
    table = (folder / "profile.md").read_text()
    printed = capsys.readouterr().out
    for phase in ("schedule", "input batch", "launch", "sampling", "elsewhere"):
        assert f"| {phase} |" in table
        assert phase in printed
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "aten::embedding" in names
    assert (folder / "run.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "sim:h100"], "needs a real device"),
        (["--window", "5s"], "--profile-time 3s is not possible in a window of 5 s"),
        (["--profile-time", "soon"], "--profile-time"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*FAST, "--out", str(tmp_path / "run"), *arguments) == 2
    assert message in capsys.readouterr().err
