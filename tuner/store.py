"""A study's folder on disk: its record, its runs, its Optuna storage. Nothing that was measured is lost or redone."""

import datetime
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import UserError
from reports.study import STUDY_FILE
from tuner.settings import Settings
from tuner.targets.bundled import Load, Measured
from workloads.early_stop import BEHIND, HELD, INTERRUPTED, MAY_HAVE_HELD
from workloads.metrics import Window
from workloads.race import good_by_slice
from workloads.records import RUN_FILE, SCHEMA_VERSION, RunRecord, write_atomic, write_run

if TYPE_CHECKING:
    import optuna

BEST_FILE = "best.json"
DATABASE_FILE = "study.db"
RUNS_FOLDER = "runs"
STUDY_NAME = "tune"


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run in a study, as the search sees it.

    Attributes:
        path: of its folder, below the study's.
        meta: content of its `run.json`.
    """

    path: str
    meta: dict[str, Any]

    @property
    def rate(self) -> float | None:
        return self.meta["rate"]

    @property
    def goodput(self) -> float:
        """Good requests per second of the window; 0 when it had none.

        A window that ended early had not the number of arrivals that its rate stands for, so there it is the offered
        rate times the share of good requests.
        """
        summary = self.meta["summary"]
        if self.meta["stopped_early"] == HELD and self.rate is not None:
            return self.rate * summary["good_requests"] / self.meta["window"]["requests"]
        return summary["request_goodput"] or 0.0

    @property
    def is_valid(self) -> bool:
        return self.meta["validity"]["valid"]

    @property
    def distrust(self) -> str:
        """Why the run cannot be trusted; empty when it can."""
        return "; ".join(c["detail"] for c in self.meta["validity"]["checks"] if not c["ok"])

    @property
    def failure(self) -> str | None:
        """Why the run broke off; None when it did not."""
        stopped = self.meta["stopped_early"] or ""
        return stopped.removeprefix("failed: ") if stopped.startswith("failed: ") else None

    @property
    def is_behind(self) -> bool:
        """It was dropped because it served fewer requests well than the best so far did under the same load."""
        return self.meta["stopped_early"] == BEHIND

    @property
    def failure_type(self) -> str:
        """Name of the exception behind that; empty when there is none."""
        return (self.failure or "").partition(":")[0]

    @property
    def constraint(self) -> float:
        """How far the worst bound of the SLO is from being met: at most 0 when all are, by point estimate."""
        if self.failure is not None:
            return 1.0
        return max(_excess(bound) for bound in self.meta["verdict"]["bounds"])

    @property
    def held(self) -> bool:
        """The SLO was met, by point estimate, in a run that can be trusted and whose requests all went to their end."""
        return self.constraint <= 0 and self.is_valid and self.meta["stopped_early"] in MAY_HAVE_HELD

    def to_dict(self) -> dict[str, Any]:
        """An entry of a trial's `runs` in `study.json`."""
        return {
            "path": self.path,
            "rate": self.rate,
            "verdict": self.meta["verdict"]["state"],
            "goodput": self.goodput,
            "stopped_early": self.meta["stopped_early"],
        }


def _excess(bound: Mapping[str, Any]) -> float:
    """Missing share of requests for a quantile, relative excess for a mean; 1 when nothing was observed."""
    if bound["required_share"] is not None:
        share = bound["met_share"]
        return bound["required_share"] - (share if share is not None else 0.0)
    observed = bound["observed_ms"]
    return 1.0 if observed is None else observed / bound["bound_ms"] - 1.0


class StudyStore:
    """The folder of a study.

    Args:
        path: the folder, which exists.
        record: the content of `study.json`.
    """

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record
        self._runs: list[Run] = []

    @classmethod
    def create(cls, path: Path, record: dict[str, Any]) -> "StudyStore":
        """Start a study in a new folder.

        Raises:
            UserError: the folder holds something already, or cannot be written.
        """
        try:
            if path.exists() and any(path.iterdir()):
                raise UserError(f"--out {str(path)!r} is not empty: choose a new folder, or --resume a study")
            (path / RUNS_FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"cannot write to {str(path)!r}: {error.strerror or error}; choose another --out"
            ) from error
        store = cls(path, {"schema_version": SCHEMA_VERSION, "kind": "study", "created": _now()} | record)
        store.save()
        return store

    @classmethod
    def open(cls, path: Path) -> "StudyStore":
        """Open a study to go on with it.

        Raises:
            UserError: no study there, or a damaged one.
        """
        from reports.study import load_study

        if not (path / STUDY_FILE).is_file():
            raise UserError(f"--resume {str(path)!r}: there is no {STUDY_FILE}; give the folder of a study")
        store = cls(path, load_study(path).study)
        store._load_runs()
        return store

    def _load_runs(self) -> None:
        for run_file in sorted((self.path / RUNS_FOLDER).glob(f"*/{RUN_FILE}")):
            if run_file.parent.name.startswith("."):
                # Left by a process that was killed while it wrote; its run will be measured again.
                shutil.rmtree(run_file.parent, ignore_errors=True)
                continue
            try:
                meta = RunRecord.load(run_file.parent).meta
            except UserError as error:
                raise UserError(f"{error}; remove its folder, and the run will be made again") from error
            self._runs.append(Run(str(run_file.parent.relative_to(self.path)), meta))

    def discard(self) -> None:
        """Remove a study that holds no run."""
        assert not self._runs
        shutil.rmtree(self.path, ignore_errors=True)

    def save(self) -> None:
        """Write `study.json`, whole or not at all."""
        self.record["updated"] = _now()
        self._write(STUDY_FILE, self.record)

    def save_best(self, best: Mapping[str, Any]) -> None:
        """Write `best.json`."""
        self._write(BEST_FILE, best)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            write_atomic(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UserError(f"cannot write {self.path / name}: {error.strerror or error}") from error

    @property
    def runs(self) -> list[Run]:
        """All runs in the folder, in order."""
        return self._runs

    def find_run(self, settings: Settings, load: Load) -> Run | None:
        """A run of exactly this kind that was made before, by a process that was interrupted."""
        wanted = {key: value for key, value in asdict(load).items() if key not in ("rate", "seed")}
        for run in self._runs:
            meta = run.meta
            same_load = (meta["rate"], meta["seed"], meta["load"]) == (load.rate, load.seed, wanted)
            whole = meta["stopped_early"] != INTERRUPTED
            if whole and same_load and meta["settings"] == settings.to_dict():
                return run
        return None

    def add_run(self, label: str, measured: Measured) -> Run:
        """Write a run's folder, numbered in order."""
        numbers = (Path(r.path).name.partition("-")[0] for r in self._runs)
        number = 1 + max((int(n) for n in numbers if n.isdecimal()), default=0)
        relative = f"{RUNS_FOLDER}/{number:03d}-{label}"
        write_run(self.path / relative, measured.meta, measured.requests, measured.iterations)
        run = Run(relative, measured.meta)
        self._runs.append(run)
        return run

    def load(self, run: Run) -> RunRecord:
        """A run of this study with all that it recorded.

        Raises:
            UserError: its folder is damaged.
        """
        return RunRecord.load(self.path / run.path)

    def good_by_slice(self, run: Run) -> tuple[int, ...]:
        """The good requests of a run slice by slice, for others to race against (see `workloads.race`)."""
        window = run.meta["window"]
        return good_by_slice(self.load(run).request_records(), Window(window["start_ns"], window["end_ns"]))

    def optuna_study(self, directions: Sequence[Literal["maximize", "minimize"]] = ("maximize",)) -> "optuna.Study":
        """The Optuna study of this folder, made when it is not there yet.

        Args:
            directions: `maximize` or `minimize` for each objective.

        Raises:
            UserError: the database is damaged.
        """
        import optuna
        import sqlalchemy

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        database = self.path / DATABASE_FILE
        try:
            return optuna.create_study(
                storage=f"sqlite:///{database}",
                study_name=STUDY_NAME,
                directions=directions,
                load_if_exists=True,
            )
        except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, RuntimeError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise UserError(
                f"{database} is damaged ({reason}): its runs are safe in {RUNS_FOLDER}/; remove {DATABASE_FILE} and "
                "--resume goes on from them"
            ) from error


def best_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `best.json` for that of `study.json`: the settings to use, with the evidence for them."""
    best = record["best"] or {"settings": None, "rate": None, "is_default": None}
    evidence = ("slo", "model", "device", "workload", "simulated", "confirmation")
    several = [key for key in ("objectives", "front") if key in record]
    return {
        "schema_version": record["schema_version"],
        "settings": best["settings"],
        "rate": best["rate"],
        "is_default": best["is_default"],
    } | {key: record[key] for key in (*evidence, *several)}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
