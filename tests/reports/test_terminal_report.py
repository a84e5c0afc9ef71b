"""The summary in the terminal."""

import json
from io import StringIO

import pytest
from rich.console import Console

from reports.terminal import run_summary, study_summary
from workloads.records import RunRecord


def shown(renderable, width: int = 80) -> str:
    out = StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(renderable)
    return out.getvalue()


def study_text(folder) -> str:
    return shown(study_summary(json.loads((folder / "study.json").read_text()), folder))


def test_the_verdict_comes_first_and_the_commands_follow(make_study):
    text = study_text(make_study())
    assert text.startswith("Use max_num_seqs=48")
    assert text.index("tune bench") < text.index("Baseline and winner")


def test_a_study_fits_eighty_columns_and_needs_no_colour(make_study):
    def one_miss(study):
        study["confirmation"]["baseline"]["verdict"]["bounds"][0]["state"] = "infeasible"
        study["confirmation"]["winner"]["verdict"]["bounds"][0]["state"] = "feasible"

    text = study_text(make_study(change=one_miss))
    assert "\x1b" not in text
    assert max(len(line.rstrip()) for line in text.splitlines() if not line.startswith("Stored in")) <= 80
    assert "p95_tpot<=60ms" in text
    assert "✗ infeasible" in text
    assert "✓ feasible" in text


def test_a_run_fits_eighty_columns(make_run, feasible):
    text = shown(run_summary(RunRecord.load(make_run(change=feasible))))
    assert text.startswith("The SLO p95_ttft=1s,p95_tpot=60ms holds")
    assert max(len(line.rstrip()) for line in text.splitlines() if not line.startswith("Stored in")) <= 80
    assert "Diagnosis" in text


def test_commands_can_be_copied_whole(make_study):
    lines = study_text(make_study()).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  tune bench"))
    command = []
    for line in lines[start:]:
        command.append(line.strip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            break
    assert command[-1].endswith("--set chunk_size=256")


@pytest.mark.parametrize("missing", ["runs/000-baseline", "runs/001-winner"])
def test_missing_runs_do_not_stop_the_summary(make_study, missing):
    import shutil

    folder = make_study()
    shutil.rmtree(folder / missing)
    assert "1 of its runs cannot be read" in " ".join(study_text(folder).split())


def test_markup_and_control_codes_in_names_are_only_text(make_study):
    def hostile(study):
        study["confirmation"]["text"] = "[bold]x[/bold]\x1b[2J[/nope]"

    text = study_text(make_study(change=hostile))
    assert "[bold]x[/bold] [2J[/nope]" in text
    assert "\x1b" not in text
