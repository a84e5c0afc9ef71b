"""`tune settings`: every setting on one page."""

from reports.settings import setting_text
from tuner.catalogue import CATALOGUE
from tuner.settings import Settings
from tuner.space import TUNED


def print_settings() -> None:
    """Name, default, meaning and values of each; which are searched unless told otherwise, and what vLLM calls it."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning, values", overflow="fold")
    for name, default in Settings().to_dict().items():
        entry = CATALOGUE[name]
        mark = "*" if name in TUNED else ""
        in_vllm = "" if entry.vllm is None else "; also in vLLM" if entry.vllm == name else f"; vLLM: {entry.vllm}"
        what = Text.assemble(entry.meaning, "\n", (f"{entry.kind.values}{in_vllm}", "dim"))
        table.add_row(Text(name + mark, style="bold"), Text(setting_text(name, default)), what)
    console = Console()
    console.print(table)
    console.print(
        Text(
            "\nTo fix one: --set NAME=VALUE. To search one: --search NAME=A,B,C, or NAME=LOW..HIGH for numbers.\n"
            "* searched unless it is fixed."
        )
    )
