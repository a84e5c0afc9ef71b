"""The command line, called in this process, and one whole study that many tests read."""

import contextlib
import gc
import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.small_studies import FEW_SEATS, SMALL, TPE, Outcome, Tune
from tuner.cli.main import main

STUDY_TRIALS = 2


def call(*arguments: str) -> Outcome:
    """What a shell would see of the command line; leaves this process as it was."""
    out, err = io.StringIO(), io.StringIO()
    argv, handler = sys.argv, signal.getsignal(signal.SIGTERM)
    # Every run collects garbage before it starts; leave out what the libraries and pytest hold for good.
    gc.freeze()
    # The record of a study holds the command line that made it.
    sys.argv = ["tune", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            main(list(arguments))
    finally:
        sys.argv = argv
        signal.signal(signal.SIGTERM, handler)
    assert isinstance(exit_.value.code, int)
    return Outcome(exit_.value.code, out.getvalue(), err.getvalue())


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Calls the command line in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(autouse=True, scope="session")
def few_candidates() -> Iterator[None]:
    """A twin that plays enough to find something, in a second or two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.strategies.twin_search.FIRST_CANDIDATES", 16)
        patch.setattr("tuner.strategies.twin_search.CANDIDATES", 8)
        patch.setattr("tuner.strategies.candidates.FIRST_RANDOM_CANDIDATES", 8)
        yield


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares the second that the reports take, where they are not the question."""
    monkeypatch.setattr("reports.build.write_reports", lambda folder: [folder / "report.html"])


@pytest.fixture(scope="session")
def whole_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A study's folder and what was printed; to be read, never changed."""
    folder = tmp_path_factory.mktemp("whole") / "study"
    limits = ("--trials", str(STUDY_TRIALS), "--seed", "1")
    outcome = call(*SMALL, *FEW_SEATS, *TPE, *limits, "--out", str(folder), "--json")
    return folder, outcome
