"""A diff as GitHub-flavoured Markdown, short enough for a comment on a pull request."""

from reports.diff import view
from reports.diff.diff import Diff
from reports.diff.text import headline
from reports.markdown import inline, table_text

_UNDECIDED = "\N{WHITE QUESTION MARK ORNAMENT}"
_MARKS = {0: "\N{WHITE HEAVY CHECK MARK}", 1: "\N{CROSS MARK}", 3: _UNDECIDED}


def to_markdown(diff: Diff) -> str:
    """Headline and what is judged; the rest is folded away."""
    told = headline(diff)
    blocks = [f"### {marked(diff.exit_code, told.sentence)}"]
    blocks += [f"> {inline(notice)}" for notice in told.notices]
    blocks += [table_text(view.gated_table(diff)), _listed(view.reasons(diff))]
    if moved := view.moved(diff):
        blocks += ["**What moved**", _listed(moved)]
    blocks += ["<details><summary>What was compared, and the other metrics</summary>", _listed(view.compared(diff))]
    if settings := view.settings_table(diff):
        blocks.append(table_text(settings))
    blocks += [table_text(view.shown_table(diff)), "</details>"]
    return "\n\n".join(block for block in blocks if block) + "\n"


def marked(exit_code: int, sentence: str) -> str:
    """A headline with a sign that shows from afar how it ended."""
    return f"{_MARKS.get(exit_code, _UNDECIDED)} {inline(sentence)}"


def _listed(lines: tuple[str, ...]) -> str:
    return "\n".join(f"- {inline(line)}" for line in lines)
