"""What commands print at their end."""

import json
import sys
from pathlib import Path
from typing import Any

from reports.comparison import COMPARISON_FILE
from reports.study import STUDY_FILE

INTERRUPTED_CODE = 130


def print_summary(folder: Path) -> None:
    """The summary of a run, a study or a comparison on standard output."""
    from rich.console import Console

    from reports.study import load_run, load_study
    from reports.terminal import comparison_summary, run_summary, study_summary

    if (folder / STUDY_FILE).is_file():
        summary = study_summary(load_study(folder).study, folder)
    elif (folder / COMPARISON_FILE).is_file():
        summary = comparison_summary(folder)
    else:
        summary = run_summary(load_run(folder))
    Console().print(summary)


def print_json(content: dict[str, Any]) -> None:
    """Machine-readable output, alone on standard output."""
    # In ASCII, since names of files may hold what no terminal's encoding can write.
    json.dump(content, sys.stdout, indent=2)
    sys.stdout.write("\n")


def this_command() -> list[str]:
    """The command line without its --out, whose folder exists by the time someone repeats it."""
    kept, skip = ["tune"], False
    for word in sys.argv[1:]:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return kept
