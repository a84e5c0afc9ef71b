"""The results on the terminal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scripts.gpu_proof.launcher import DONE
from scripts.gpu_proof.parts import KERNELS

if TYPE_CHECKING:
    from rich.table import Table


def results_table(results: Mapping[str, Any]) -> "Table":
    """What every part found; of the kernels only what is wrong."""
    from rich.markup import escape
    from rich.table import Table

    card = results["card"]["name"] or "CPU"
    dry = ", dry run: figures mean nothing" if results["dry_run"] else ""
    table = Table("part", "what", "found", title=f"{card}{dry}", title_justify="left")
    for number, part in results["parts"].items():
        state = part["state"] if part["state"] == DONE else f"[bold red]{part['state']}[/]"
        rows = part["rows"]
        table.add_row(f"{number} {part['title']}", "", f"{state} after {part['seconds']:.0f} s")
        if int(number) == KERNELS:
            rows = [row for row in rows if not row["ok"]]
            table.add_row("", f"{len(part['rows'])} checks", f"{len(rows)} of them wrong")
        for row in rows:
            table.add_row("", escape(row["what"]), escape(row["found"]))
        if reason := (part.get("error") or part["stderr"] or "").strip():
            table.add_row("", "the last it said", escape(reason.splitlines()[-1]))
        if part.get("published"):
            table.add_row("", *_published(part["published"]))
        table.add_section()
    return table


def goals_table(results: Mapping[str, Any]) -> "Table":
    """Which goals were met."""
    from rich.table import Table

    table = Table("goal", "found", "", title="Goals, set for an H200", title_justify="left")
    for goal in results["goals"]:
        table.add_row(goal["text"], goal["found"], "met" if goal["met"] else "[bold red]MISSED[/]")
    return table


def _published(published: Mapping[str, Any]) -> tuple[str, str]:
    rates = f"nano-vllm {published['nano_vllm_tokens_per_s']:.0f}, vLLM {published['vllm_tokens_per_s']:.0f} tokens/s"
    return f"published, not measured here, on another card: {published['card']}", f"{rates} ({published['source']})"
