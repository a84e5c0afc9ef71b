"""The house: four floors whose imports point down, a scheduler without torch, and a command line that starts light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("engine", "workloads", "reports", "tuner")
MAX_LINES = 330
# What reports may know of the engine: its trace and its errors.
SEEN_BY_REPORTS = {"engine.trace", "engine.errors"}
TORCH_FREE = (
    "engine/scheduler",
    "engine/kv_cache",
    "engine/config.py",
    "engine/clock.py",
    "engine/request.py",
    "engine/trace.py",
    "engine/errors.py",
)
HEAVY = (
    *("torch", "transformers", "tokenizers", "pandas", "plotly", "optuna", "numpy", "scipy"),
    *("fastapi", "uvicorn", "prometheus_client"),
)

FILES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class ImportCollector(ast.NodeVisitor):
    """Modules that a file imports when it runs, inside functions too; `TYPE_CHECKING` blocks never run."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.names: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
        # `from package import module` imports the module, so both are named; names that are no module match no file.
        self.names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}


def imports_of(source: str, package: str) -> set[str]:
    collector = ImportCollector(package)
    collector.visit(ast.parse(source))
    return collector.names


@cache
def imports_of_file(path: Path) -> frozenset[str]:
    package = module_name(path if path.name == "__init__.py" else path.parent / "__init__.py")
    return frozenset(imports_of(path.read_text(encoding="utf-8"), package))


def top(name: str) -> str:
    return name.partition(".")[0]


def test_collector_sees_imports_in_functions_and_skips_type_checking() -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "import typing as t\n"
        "if TYPE_CHECKING:\n    import torch\nelse:\n    import json\n"
        "if t.TYPE_CHECKING:\n    import pandas\n"
        "def f():\n    from ..workloads import slo\n"
    )
    names = imports_of(source, "engine.model")
    assert {"json", "engine.workloads.slo"} <= names
    assert not {"torch", "pandas"} & {top(name) for name in names}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_point_down_only(path: Path) -> None:
    floor = FLOORS.index(path.relative_to(ROOT).parts[0])
    above = {name for name in imports_of_file(path) if top(name) in FLOORS[floor + 1 :]}
    assert not above, f"{relative(path)} imports from a floor above it"


@pytest.mark.parametrize("path", [p for p in FILES if p.is_relative_to(ROOT / "reports")], ids=relative)
def test_reports_know_only_trace_and_errors_of_the_engine(path: Path) -> None:
    engine_names = {name for name in imports_of_file(path) if top(name) == "engine"}
    strangers = {name for name in engine_names if ".".join(name.split(".")[:2]) not in SEEN_BY_REPORTS}
    assert not strangers, f"{relative(path)} imports more of the engine than its trace and its errors"


def reachable_in_engine(start: Path) -> Iterator[tuple[Path, frozenset[str]]]:
    """The files of the engine that importing `start` runs, each with what it imports."""
    by_module = {module_name(path): path for path in FILES}
    seen: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        names = imports_of_file(path)
        yield path, names
        # Importing a.b.c runs the packages a and a.b first.
        with_packages = {name[:end] for name in names for end in range(len(name) + 1) if f"{name}."[end] == "."}
        waiting += [by_module[name] for name in with_packages if top(name) == "engine" and name in by_module]


@pytest.mark.parametrize(
    "path",
    [p for p in FILES for start in TORCH_FREE if p.is_relative_to(ROOT / start)],
    ids=relative,
)
def test_scheduler_kv_and_contracts_reach_no_torch(path: Path) -> None:
    for file, names in reachable_in_engine(path):
        assert "torch" not in {top(name) for name in names}, f"{relative(path)} reaches torch through {relative(file)}"


def modules_loaded_by(code: str) -> set[str]:
    """Names in `sys.modules` when a fresh interpreter has run `code`, whatever that exits with."""
    probe = f"import atexit, sys\natexit.register(lambda: print('\\n::', *sys.modules))\n{code}"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("\n:: ")[2].split())


def test_importing_scheduler_and_kv_cache_leaves_torch_unloaded() -> None:
    loaded = modules_loaded_by("import engine.scheduler.scheduler, engine.kv_cache.manager")
    assert "engine.kv_cache.block_pool" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize(
    "command",
    [
        *("--help", "bench --help", "compare --help", "report --help", "serve --help", "settings --help"),
        *("baseline --help", "baseline save --help", "ci --help", "diff --help", "profile --help"),
        "--version",
    ],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    loaded = modules_loaded_by(f"from tuner.cli.main import main\nmain({command.split()!r})")
    assert "tuner.cli.options" in loaded
    assert loaded.isdisjoint(HEAVY), loaded.intersection(HEAVY)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_are_small_and_say_what_they_are_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES, f"{relative(path)}: split it"
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{relative(path)} has no module docstring"
