"""The charts: well-formed, and every line within its panel."""

from pathlib import Path
from xml.etree import ElementTree

from scripts.search_proof.plots import HEIGHT, WIDTH, Panel, write_chart

SVG = "{http://www.w3.org/2000/svg}"


def test_a_chart_has_every_line_of_every_panel_within_its_bounds(tmp_path: Path) -> None:
    lines = {"twin": [0.5, 0.1, 0.0], "random <&>": [2.0, 1.0, 0.5]}
    panels = [Panel(f"panel {i}", "time", "regret", (0.001, 0.01, 0.06), lines, top=1.0, mark=0.02) for i in range(4)]
    write_chart(tmp_path / "new" / "chart.svg", panels)
    root = ElementTree.parse(tmp_path / "new" / "chart.svg").getroot()
    drawn = root.findall(f".//{SVG}polyline")
    assert len(drawn) == 8
    for line in drawn:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


def test_a_line_keeps_its_colour_from_panel_to_panel(tmp_path: Path) -> None:
    panels = [
        Panel("a", "x", "y", (0.01, 0.1), {"one": [0.1, 0.2], "two": [0.3, 0.4]}, top=1.0),
        Panel("b", "x", "y", (0.01, 0.1), {"two": [0.3, 0.4]}, top=1.0),
    ]
    write_chart(tmp_path / "chart.svg", panels)
    colours = [line.attrib["stroke"] for line in ElementTree.parse(tmp_path / "chart.svg").findall(f".//{SVG}polyline")]
    assert colours[1] == colours[2] != colours[0]
