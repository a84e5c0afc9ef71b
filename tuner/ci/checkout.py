"""The engine of another checkout, measured by a process of its own that runs that checkout's code."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

from engine.errors import UserError
from reports.settings import assignment
from tuner.settings import Settings
from tuner.targets.bundled import Load, Measured, TargetOptions
from workloads.driver import Progress
from workloads.records import RUN_FILE, RunRecord
from workloads.slo import Slo
from workloads.spec import WorkloadSpec

ENTRY = Path("tuner", "cli", "main.py")
POLL_S = 0.2
_NAMES = "import json; from tuner.settings import NAMES; print(json.dumps(NAMES))"


class CheckoutTarget:
    """Measures with another checkout's code, by its `tune bench`. Each run loads the model anew.

    Args:
        checkout: the folder, with the same layout as this one.
        options: model and device.
        spec: the workload.

    Raises:
        UserError: it is no checkout, or its code does not run here.
    """

    def __init__(self, checkout: Path, options: TargetOptions, spec: WorkloadSpec) -> None:
        self._checkout = checkout.resolve()
        if not (self._checkout / ENTRY).is_file():
            raise UserError(f"{str(checkout)!r} is no checkout of tune: it has no {ENTRY}")
        self._options = options
        self._spec = spec
        # Without the current folder in front (-P), which may be a checkout itself; so relative names of models and
        # devices go on to mean the same in both processes.
        self._python = [sys.executable, "-P"]
        self._environment = os.environ | {"PYTHONPATH": str(self._checkout)}
        self._known = self._settings_there()

    def measure(
        self,
        settings: Settings,
        load: Load,
        slo: Slo | None,
        *,
        stop_when_settled: bool = True,
        on_progress: Callable[[Progress], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Measured:
        """See `tuner.targets.bundled.BundledTarget.measure`. Every run goes to its end, and tells no progress.

        Raises:
            UserError: the checkout lacks a setting, or its `tune bench` fails.
        """
        import yaml

        with tempfile.TemporaryDirectory(prefix="tune-ci-") as folder:
            out = Path(folder) / "run"
            workload = Path(folder) / "workload.yaml"
            workload.write_text(yaml.safe_dump(self._spec.to_dict(), sort_keys=False), encoding="utf-8")
            words = self._bench(settings, load, slo, workload)
            complaint = self._run([*words, "--out", str(out)], should_stop or (lambda: False), Path(folder) / "log")
            if not (out / RUN_FILE).is_file():
                if should_stop is not None and should_stop():
                    raise KeyboardInterrupt
                raise UserError(f"the checkout {str(self._checkout)!r} measured nothing: {complaint}")
            record = RunRecord.load(out)
            stopped = record.meta["stopped_early"] or ""
            error = stopped.removeprefix("failed: ") if stopped.startswith("failed: ") else None
            return Measured(record.meta, record.request_records(), record.iteration_records(), error)

    def _settings_there(self) -> frozenset[str]:
        """The names of the settings that the checkout has; asking shows that its code runs here."""
        command = [*self._python, "-c", _NAMES]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"the checkout {str(self._checkout)!r} does not run here: {_last_line(done.stderr)}")
        return frozenset(json.loads(done.stdout))

    def _run(self, words: Sequence[str], should_stop: Callable[[], bool], log: Path) -> str:
        """Run its command line to the end; the last thing that it complained of."""
        with log.open("wb") as errors:
            # In a session of its own, so that Ctrl-C reaches it once: through here.
            process = subprocess.Popen(
                [*self._python, "-m", "tuner.cli.main", *words],
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            stopping = False
            try:
                while process.poll() is None:
                    if should_stop() and not stopping:
                        process.send_signal(signal.SIGINT)
                        stopping = True
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_S)
            finally:
                process.kill()
                process.wait()
        return _last_line(log.read_text(encoding="utf-8", errors="replace"))

    def _bench(self, settings: Settings, load: Load, slo: Slo | None, workload: Path) -> list[str]:
        options = self._options
        engine = options.several_devices() | options.launching()
        if options.attention_backend != "auto":
            engine["attention_backend"] = options.attention_backend
        given = {
            "--model": options.model,
            "--device": options.device,
            "--dtype": options.dtype,
            # A checkout of before the option does not know it.
            "--kv-cache-dtype": None if options.kv_cache_dtype == "auto" else options.kv_cache_dtype,
            "--max-model-len": options.max_model_len,
            "--device-memory": None if options.device_memory_bytes is None else _bytes(options.device_memory_bytes),
            **{f"--{name.replace('_', '-')}": value for name, value in engine.items()},
            "--workload": workload,
            "--rate": load.rate,
            "--slo": slo,
            "--window": _seconds(load.window_s),
            "--warmup": _seconds(load.warmup_s),
            "--drain-timeout": _seconds(load.drain_timeout_s),
            "--seed": load.seed,
        }
        words: list[str] = []
        for option, value in given.items():
            if value is not None:
                words += [option] if value is True else [option, str(value)]
        return ["bench", *words, *(word for text in self._assignments(settings) for word in ("--set", text))]

    def _assignments(self, settings: Settings) -> list[str]:
        """Every setting that the checkout has, so that another default there changes nothing."""
        values, usual = settings.to_dict(), Settings().to_dict()
        lacking = [name for name in values if name not in self._known]
        needed = [assignment(name, values[name]) for name in lacking if values[name] != usual[name]]
        if needed:
            raise UserError(f"the checkout {str(self._checkout)!r} has no such setting: {', '.join(needed)}")
        return [assignment(name, value) for name, value in values.items() if name in self._known]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"


def _seconds(value: float) -> str:
    """A duration as the command line reads it, to the last digit."""
    return f"{Decimal(repr(value)):f}s" if value else "0"


def _bytes(value: int) -> str:
    # A division by a power of two loses nothing.
    return f"{value / 1024!r}k"
