"""The page in a real browser, where one is installed."""

import re
import shutil
import subprocess

import pytest

from reports.build import write_reports

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_every_chart_is_drawn_and_the_console_stays_silent(make_study, tmp_path):
    page = write_reports(make_study())[0]
    ran = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            "--window-size=1280,4000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    drawn = re.findall(r'<div class="plot[^>]*>.*?<script type="application/json">', ran.stdout, re.DOTALL)
    assert len(drawn) == 9, "two traces, two of waiting, three latencies, trials and importance"
    assert all('class="main-svg"' in plot for plot in drawn)
    assert "CONSOLE" not in ran.stderr, ran.stderr
