"""A checkout measured by a process of its own: with its own code, and refused in a sentence when that cannot be."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import UserError
from tests.tuner.kept_runs import LOAD, OPTIONS, SEATS, SLO, SPEC, run, stored_baseline
from tests.tuner.small_studies import Tune
from tuner.arguments import TuneArguments
from tuner.ci.checkout import CheckoutTarget, _bytes, _seconds
from tuner.settings import NAMES, Settings
from tuner.units import parse_bytes

ROOT = Path(__file__).resolve().parents[2]
MakeCheckout = Callable[..., CheckoutTarget]


def _package(root: Path) -> None:
    """Packages with their marks, without which an installed `tuner` would go before."""
    (root / "tuner" / "cli").mkdir(parents=True)
    for folder in ("tuner", "tuner/cli"):
        (root / folder / "__init__.py").write_text("")


@pytest.fixture
def make_checkout(tmp_path: Path) -> MakeCheckout:
    """A checkout with the given command line and settings."""

    def make(main: str, names: tuple[str, ...] = NAMES) -> CheckoutTarget:
        _package(tmp_path)
        (tmp_path / "tuner" / "settings.py").write_text(f"NAMES = {names!r}\n")
        (tmp_path / "tuner" / "cli" / "main.py").write_text(main)
        return CheckoutTarget(tmp_path, OPTIONS, SPEC)

    return make


def test_the_same_code_in_another_process_measures_the_same(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "nowhere")
    stored_baseline(Path("baselines/main"), (7,))
    outcome = tune("ci", "--baseline", "main", "--checkout", str(ROOT), "--exact", "--out", "c")
    assert outcome.code == 0, outcome.err


def test_what_a_checkout_returns_is_what_it_measured() -> None:
    target = CheckoutTarget(ROOT, OPTIONS, SPEC)
    measured = target.measure(SEATS, LOAD, SLO)
    record = run().record
    assert measured.requests == record.request_records()
    assert measured.iterations == record.iteration_records()
    assert measured.error is None
    for key in ("settings", "workload", "rate", "load", "slo", "seed", "model", "device", "verdict", "summary"):
        assert measured.meta[key] == record.meta[key]


def test_a_folder_without_the_code_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no checkout of tune: it has no tuner.cli.main\.py"):
        CheckoutTarget(tmp_path, OPTIONS, SPEC)


def test_code_that_does_not_run_is_refused_with_its_complaint(tmp_path: Path) -> None:
    _package(tmp_path)
    (tmp_path / "tuner" / "cli" / "main.py").write_text("")
    (tmp_path / "tuner" / "settings.py").write_text("import no_such_module\n")
    with pytest.raises(UserError, match="does not run here: ModuleNotFoundError: No module named 'no_such_module'"):
        CheckoutTarget(tmp_path, OPTIONS, SPEC)


def test_a_command_line_that_refuses_is_quoted(make_checkout: MakeCheckout) -> None:
    target = make_checkout("import sys\nprint('error: no such workload', file=sys.stderr)\nsys.exit(2)\n")
    with pytest.raises(UserError, match="measured nothing: no such workload"):
        target.measure(SEATS, LOAD, SLO)


def test_an_older_checkout_measures_what_it_has_settings_for(make_checkout: MakeCheckout) -> None:
    # It complains of what it was told, so that this can be seen.
    target = make_checkout(
        "import sys\nprint(*sys.argv, file=sys.stderr)\n", tuple(n for n in NAMES if n != "retried_first")
    )
    with pytest.raises(UserError) as told:
        target.measure(SEATS, LOAD, SLO)
    assert "--set max_num_seqs=16 " in str(told.value)
    assert "--set block_size=16 " in str(told.value), "its default there may be another"
    assert "retried_first" not in str(told.value)
    with pytest.raises(UserError, match="has no such setting: retried_first=true"):
        target.measure(replace(SEATS, retried_first=True), LOAD, SLO)


def test_an_interrupt_is_passed_on_to_the_process(make_checkout: MakeCheckout) -> None:
    target = make_checkout("import signal\nsignal.pause()\n")
    with pytest.raises(KeyboardInterrupt):
        target.measure(SEATS, LOAD, SLO, should_stop=lambda: True)


@pytest.mark.parametrize("value", [0.0, 1 / 3, 30.0, 1e-7, 123456.78125])
def test_durations_reach_the_other_process_to_the_last_digit(value: float) -> None:
    lengths = TuneArguments(window="30s", warmup=_seconds(value)).run_lengths(None)
    assert lengths.warmup_s == value


@pytest.mark.parametrize("value", [1, 1023, 24 << 30, (6 << 30) + 12345])
def test_sizes_reach_the_other_process_to_the_last_byte(value: int) -> None:
    assert parse_bytes("--device-memory", _bytes(value)) == value


def test_settings_reach_the_other_process_as_they_are(make_checkout: MakeCheckout) -> None:
    settings = Settings(batching="dynamic", max_queue_delay=0.0, aging=0.125, policy="sjf", swap_space=12345)
    words = make_checkout("")._bench(settings, LOAD, None, Path("w.yaml"))
    assert Settings().override(words[i + 1] for i, word in enumerate(words) if word == "--set") == settings


def test_the_engines_own_options_reach_the_other_process(tmp_path: Path) -> None:
    changed = {
        "kv_cache_dtype": "fp8", "attention_backend": "reference", "enforce_eager": True,
        "max_cudagraph_capture_size": 64, "data_parallel_size": 2, "router": "least_kv",
    }  # fmt: skip
    _package(tmp_path)
    (tmp_path / "tuner" / "settings.py").write_text(f"NAMES = {NAMES!r}\n")
    (tmp_path / "tuner" / "cli" / "main.py").write_text("")
    target = CheckoutTarget(tmp_path, replace(OPTIONS, **changed), SPEC)  # type: ignore[arg-type]
    words = " ".join(target._bench(SEATS, LOAD, None, Path("w.yaml")))
    for name, value in changed.items():
        option = f"--{name.replace('_', '-')}"
        assert (option if value is True else f"{option} {value}") in words
    plain = " ".join(CheckoutTarget(tmp_path, OPTIONS, SPEC)._bench(SEATS, LOAD, None, Path("w.yaml")))
    assert not any(f"--{name.replace('_', '-')}" in plain for name in changed)
