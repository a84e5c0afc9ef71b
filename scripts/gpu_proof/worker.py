"""Run as a program: measures one part. Its notes say what it found, and the traceback where it failed.

Usage: python -m scripts.gpu_proof.worker MODULE NOTES BESIDE [--dry-run]
"""

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from engine.executor.before_torch import prepare_process
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import DRY, FULL


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure one part of gpu_check.py.")
    parser.add_argument("module")
    parser.add_argument("notes", type=Path)
    parser.add_argument("beside", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    notes = Notes(options.notes, options.beside)
    prepare_process()  # before the part imports torch
    try:
        importlib.import_module(options.module).measure(DRY if options.dry_run else FULL, notes)
    except (Exception, KeyboardInterrupt):
        notes.set(error=traceback.format_exc())
        return 1
    notes.set(error=notes.error)
    return int(notes.error is not None)


if __name__ == "__main__":
    sys.exit(main())
