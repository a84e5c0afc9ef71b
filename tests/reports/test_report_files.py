"""The files that a report is: what they must and must not hold."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from engine.errors import UserError
from reports.build import write_reports

HOSTILE = "<script>alert(1)</script>|`x`*[a](javascript:1)@all\x1b[31m\u202e</style>"


class Resources(HTMLParser):
    """Collects everything that a page would load, and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.urls += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data") and value]


def hostile(record):
    record["model"]["name"] = HOSTILE
    record["workload"]["name"] = HOSTILE
    record["environment"]["cpu"] = HOSTILE
    if record["kind"] == "study":
        record["trials"][3]["error"] = HOSTILE
        record["trials"][3]["settings"]["policy"] = HOSTILE
        record["importance"][HOSTILE] = 0.1
        record["command"] = HOSTILE


@pytest.mark.parametrize("kind", ["run", "study", "comparison"])
def test_a_report_is_one_page_and_one_markdown_file_beside_the_records(make_run, make_study, make_comparison, kind):
    folder = {"run": make_run, "study": make_study, "comparison": make_comparison}[kind]()
    before = {path.name for path in folder.iterdir()}
    written = write_reports(folder)
    assert [path.name for path in written] == ["report.html", "report.md"]
    assert {path.name for path in folder.iterdir()} - before == {"report.html", "report.md"}


def test_the_page_loads_nothing_from_anywhere(make_study):
    page = write_reports(make_study())[0].read_text()
    resources = Resources()
    resources.feed(page)
    assert all(url.startswith(("#", "data:")) for url in resources.urls)
    assert "link" in resources.tags
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert not re.search(r"@import|url\(|https?:", style.group(1))
    assert page.count("plotly.js v") == 1


def test_the_verdict_is_the_first_thing_said(make_study):
    page, markdown = (path.read_text() for path in write_reports(make_study()))
    body = page[page.index("<body>") :]
    assert body.index("<h1>Use max_num_seqs=48") < body.index("<h2>")
    assert markdown.startswith("## Use max_num_seqs=48")


def test_equal_records_give_equal_reports(make_study):
    folder = make_study()
    first = [path.read_bytes() for path in write_reports(folder)]
    assert [path.read_bytes() for path in write_reports(folder)] == first


def test_hostile_names_stay_text_in_the_page(make_study):
    page = write_reports(make_study(change=hostile))[0].read_text()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in page
    resources = Resources()
    resources.feed(page)
    assert not any("javascript" in url for url in resources.urls)


def test_hostile_names_of_values_and_classes_stay_text(make_comparison):
    def rename(requests):
        return [replace(request, class_name=HOSTILE) if request.index % 2 else request for request in requests]

    def rename_value(comparison):
        comparison |= {"option": HOSTILE, "command": HOSTILE, "values": ["continuous", HOSTILE]}
        comparison["runs"][1]["value"] = HOSTILE

    def hostile_classes(meta):
        meta["classes"][HOSTILE] = meta["classes"]["all"]

    folder = make_comparison(rate=9.0, change=rename_value, records=rename, change_run=hostile_classes)
    for folder_of in (folder, folder / "runs" / "001-static"):
        page, markdown = (path.read_text() for path in write_reports(folder_of))
        assert "<script>alert(1)" not in page
        assert "<script>" not in re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", markdown)
        assert "\x1b" not in page + markdown


def test_hostile_names_stay_text_in_markdown(make_study):
    markdown = write_reports(make_study(change=hostile))[1].read_text()
    fenced_out = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", markdown)
    assert "<script>" not in fenced_out
    assert "@all" not in fenced_out
    assert not re.search(r"(?<!\\)\]\(", fenced_out)
    assert "\x1b" not in markdown
    widths: dict[int, list[str]] = {}
    for line in fenced_out.splitlines():
        if line.startswith("|"):
            widths.setdefault(len(re.findall(r"(?<!\\)\|", line)), []).append(line)
        elif not line:
            assert len(widths) <= 1, widths
            widths = {}


def test_markdown_fits_a_comment_on_a_pull_request(make_study):
    markdown = write_reports(make_study(trials=200))[1].read_text()
    assert len(markdown) < 20_000
    assert "more rows in the HTML report" in markdown
    assert "![" not in markdown


def test_nulls_are_dashes_in_every_output(make_run):
    page, markdown = (path.read_text() for path in write_reports(make_run(slo=None)))
    assert re.search(r"Goodput</th><td class=\"n\">—</td>", page)
    assert "| Goodput | — |" in markdown
    for word in ("None", "nan"):
        assert not re.search(rf"\b{word}\b", re.sub(r"(?s)<script.*?</script>", "", page))
        assert not re.search(rf"\b{word}\b", markdown)


def test_a_folder_of_neither_kind_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not the folder of a run, a study or a comparison"):
        write_reports(tmp_path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "is damaged: not JSON"),
        ("[]", "is damaged: it holds a list, not an object"),
        ('{"schema_version": 1, "kind": "study"}', "schema_version 1"),
        ('{"schema_version": 2, "kind": "run"}', "kind 'run'"),
        ('{"schema_version": 2, "kind": "study"}', "model is missing"),
    ],
)
def test_a_damaged_study_is_refused_by_name_and_fault(tmp_path, content, fault):
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(UserError, match=r"study\.json") as caught:
        write_reports(tmp_path)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trials", [1]),
        ("trials", [{"number": 1, "state": "complete", "settings": {}, "runs": [{}]}]),
        ("confirmation", {"verdict": "better", "winner": {"settings": 3}}),
    ],
)
def test_a_study_of_another_shape_is_refused_without_a_traceback(make_study, key, value):
    folder = make_study()
    study = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(study | {key: value}))
    with pytest.raises(UserError, match="is damaged"):
        write_reports(folder)


def test_a_run_of_another_shape_or_schema_is_refused(make_run):
    folder = make_run()
    meta = json.loads((folder / "run.json").read_text())
    for change, fault in (({"settings": {}}, "max_num_seqs"), ({"schema_version": 9}, "schema_version 9")):
        (folder / "run.json").write_text(json.dumps(meta | change))
        with pytest.raises(UserError, match=fault):
            write_reports(folder)
