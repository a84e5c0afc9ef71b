"""The page on CI: its YAML is YAML, its command lines are command lines, and what it names is there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main
import yaml

from tuner.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SCRIPT = re.compile(r"(?:^|[\s/])(scripts/\w+)")


def blocks(language: str) -> list[str]:
    return [content for name, content in _BLOCK.findall(PAGE) if name == language]


def scripts_in(value: Any) -> Iterator[str]:
    """The shell texts of a workflow: `run` of GitHub's steps, `script` of GitLab's jobs."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "run" and isinstance(inner, str):
                yield inner
            elif key == "script":
                yield from inner
            else:
                yield from scripts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from scripts_in(inner)


def command_lines() -> list[list[str]]:
    """The words after `tune` of every command line of the page."""
    texts = [*blocks("bash"), *(script for block in blocks("yaml") for script in scripts_in(yaml.safe_load(block)))]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and words[0].rpartition("/")[2] == "tune":
            ends = [i for i, word in enumerate(words) if word in ("||", "&&", ";")]
            found.append(words[1 : ends[0] if ends else None])
    return found


def parse(words: list[str]) -> str:
    """Parse as the command line does, and run nothing; the name of the command."""
    # Typer brings a click of its own in some versions, so its classes have no one name.
    command: Any = typer.main.get_command(app)
    context = command.make_context("tune", list(words))
    while isinstance(command, typer.core.TyperGroup) and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return command.name


@pytest.mark.parametrize("block", blocks("yaml"))
def test_a_workflow_is_yaml_with_something_to_run(block: str) -> None:
    assert list(scripts_in(yaml.safe_load(block)))


@pytest.mark.parametrize("words", command_lines(), ids=" ".join)
def test_a_command_line_parses_with_the_real_options(words: list[str]) -> None:
    parse(words)


def test_the_page_shows_each_command_of_the_gate() -> None:
    commands = {parse(words) for words in command_lines()}
    assert {"ci", "save", "repeat", "show", "bench"} <= commands
    assert sum("ci" in words for words in command_lines()) >= 8


def test_an_option_that_is_not_there_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["ci", "--baseline", "main", "--no-such-option"])


def test_scripts_and_pages_that_it_names_are_there() -> None:
    named = {*_SCRIPT.findall(PAGE), *(f"docs/{target}" for target in re.findall(r"\]\(([\w/.]+\.md)\)", PAGE))}
    missing = sorted(name for name in named if not (ROOT / name).is_file())
    assert missing == []
