"""What a run leaves behind: its request records, its folder, and the way to read it back.

The schema is `docs/records.md`. Writing goes through pyarrow alone: pandas is needed by readers, not while measuring.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from engine.errors import UserError
from engine.request import RequestEvent
from engine.trace import IterationRecord

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SCHEMA_VERSION = 2

RUN_FILE = "run.json"
REQUESTS_FILE = "requests.parquet"
ITERATIONS_FILE = "iterations.parquet"

TURNED_AWAY = "turned_away"
"""Kind of the event in a history that the driver adds to those of the engine: a try ended without service. Its detail
is the option that says so."""

# Columns that came later, with what is true of runs without them.
_ABSENT_IN_EARLIER_RUNS = {"replica": None, "wasted_rows": 0}

Phase = Literal["warmup", "window", "cooldown"]
Status = Literal["ok", "refused", "shed", "queue_timeout", "timeout", "failed", "unfinished"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, from the moment the workload wanted it to its end. Times are nanoseconds of the run's clock.

    Attributes:
        index: position in the workload's stream, from 0.
        phase: `window` when it was scheduled in the measured part.
        status: `ok`, `refused` (can never fit), `shed` (turned away on arrival), `queue_timeout` (turned away after
            waiting too long for admission), `timeout` (did not end before the drain timeout), `failed` (see `error`)
            or `unfinished` (the run was stopped early, or the request is cooldown load that outlived the window).
        finish_reason: `length`, `stop`, `abort` or `queue_timeout` as the engine gave it; None where it gave none.
        t_sched: when the workload says it arrives. TTFT and E2E count from here.
        t_send: when it was handed to the engine, for the first time; None when it never was.
        t_admit: first admission by the scheduler.
        t_first, t_last: times of the first and the last chunk of tokens.
        t_end: when it left the engine (or was turned away for good); None when it never did.
        prompt_tokens, max_tokens: what was asked.
        output_tokens, first_chunk_tokens: what came.
        cached_tokens: prompt tokens found in the prefix cache at the first admission.
        preemptions, preemptions_swap, recomputed_tokens: what the scheduler did to it; swaps are among the
            preemptions.
        priority, class_name: of its class in the workload; a workload without classes has one, named `all`.
        attempts: how often it was sent, 1 unless it was turned away and sent again.
        chunk_times, chunk_tokens: one entry per chunk of tokens the client received.
        history: the engine's events of this request, in all its attempts, and `turned_away` at the end of each that
            was in vain.
        good: every per-request bound of the SLO holds; None without an SLO.
        replica: number of the engine that served it, the last one where it was sent again; None where there is one.
    """

    index: int
    request_id: str
    phase: Phase
    status: Status
    finish_reason: str | None
    error: str | None
    t_sched: int
    t_send: int | None
    t_admit: int | None
    t_first: int | None
    t_last: int | None
    t_end: int | None
    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    first_chunk_tokens: int
    cached_tokens: int
    preemptions: int
    recomputed_tokens: int
    preemptions_swap: int = 0
    priority: int = 0
    class_name: str = "all"
    attempts: int = 1
    chunk_times: tuple[int, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    history: tuple[RequestEvent, ...] = ()
    good: bool | None = None
    replica: int | None = None


@dataclass(frozen=True)
class RunRecord:
    """One run's folder. The tables are read when first asked for.

    Attributes:
        path: the folder.
        meta: the content of `run.json`.
    """

    path: Path
    meta: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> "RunRecord":
        """Open the folder of a run.

        Raises:
            UserError: no such run, a damaged or missing file, or a schema this version does not read.
        """
        folder = Path(path)
        meta = _read_meta(folder / RUN_FILE)
        for name in (REQUESTS_FILE, ITERATIONS_FILE):
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder / name} is missing: the run is incomplete, copy its folder whole or run it again"
                )
        return cls(folder, meta)

    @cached_property
    def requests(self) -> "pd.DataFrame":
        """`requests.parquet`, one row per request; `history` is JSON text. Nulls in number columns read as NaN."""
        return _read_table(self.path / REQUESTS_FILE, _requests_schema()).to_pandas()

    @cached_property
    def iterations(self) -> "pd.DataFrame":
        """`iterations.parquet`, one row per engine step, with the fields of `IterationRecord`."""
        return _read_table(self.path / ITERATIONS_FILE, _iterations_schema()).to_pandas()

    def request_records(self) -> list[RequestRecord]:
        """The requests as the objects that were written, to judge or summarise them again."""
        rows = _read_table(self.path / REQUESTS_FILE, _requests_schema()).to_pylist()
        return [_request_from_row(row) for row in rows]

    def iteration_records(self) -> list[IterationRecord]:
        """The iterations as the objects that were written."""
        rows = _read_table(self.path / ITERATIONS_FILE, _iterations_schema()).to_pylist()
        return [IterationRecord(**row) for row in rows]


def write_run(
    path: str | Path,
    meta: dict[str, Any],
    requests: Sequence[RequestRecord],
    iterations: Sequence[IterationRecord],
) -> Path:
    """Write a run's folder, whole or not at all. Equal input gives equal bytes.

    The folder grows under a temporary name beside its place and is renamed when all of it is on disk.

    Returns:
        The folder.

    Raises:
        UserError: `path` exists already, or cannot be written.
        ValueError: `meta` holds something JSON has no form for, NaN among them.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(path)
    text = _to_json(meta)
    if folder.exists():
        raise UserError(f"{folder} exists already: choose another name for the run")
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name, rows, schema in (
            (REQUESTS_FILE, [_request_to_row(r) for r in requests], _requests_schema()),
            (ITERATIONS_FILE, [asdict(r) for r in iterations], _iterations_schema()),
        ):
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), partial / name, compression="zstd")
            _sync(partial / name)
        write_atomic(partial / RUN_FILE, text)
        partial.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write the run to {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file whole or not at all: under a temporary name beside it, then renamed. Text is UTF-8.

    Raises:
        OSError: the file system refused.
    """
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        _sync(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    # Without it a crash of the machine can leave the new name on an empty file.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _to_json(meta: dict[str, Any]) -> str:
    return json.dumps(meta, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def refuse_constant(name: str) -> NoReturn:
    """For `json.loads`: NaN and the infinities are no numbers of a record, and no JSON.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is no number of JSON")


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: give the folder of a finished run, the one that holds {RUN_FILE}"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: not JSON ({error})") from error
    if not isinstance(meta, dict):
        raise UserError(f"{path} is damaged: it holds a {type(meta).__name__}, not an object")
    version, kind = meta.get("schema_version"), meta.get("kind")
    if version != SCHEMA_VERSION:
        raise UserError(f"{path} has schema_version {version!r}; this version of tune reads {SCHEMA_VERSION}")
    if kind != "run":
        raise UserError(f"{path} has kind {kind!r}; the record of a run has kind 'run'")
    return meta


def _read_table(path: Path, schema: "pa.Schema") -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # One file, not a data set: the folder's name must not be read as a partition.
        table = pq.ParquetFile(path).read()
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the run is incomplete, copy its folder whole or run it again") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    for name in schema.names:
        if name in _ABSENT_IN_EARLIER_RUNS and name not in table.column_names:
            value = pa.scalar(_ABSENT_IN_EARLIER_RUNS[name], schema.field(name).type)
            table = table.append_column(name, pa.repeat(value, table.num_rows))
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise UserError(f"{path} is damaged: it lacks the columns {', '.join(missing)}")
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise UserError(f"{path} is damaged: a column has another type than the schema's ({error})") from error


def _requests_schema() -> "pa.Schema":
    import pyarrow as pa

    texts = {"request_id", "phase", "status", "finish_reason", "error", "history", "class_name"}
    lists = {"chunk_times", "chunk_tokens"}

    def arrow_type(name: str) -> "pa.DataType":
        if name in texts:
            return pa.string()
        if name in lists:
            return pa.list_(pa.int64())
        return pa.bool_() if name == "good" else pa.int64()

    return pa.schema([(f.name, arrow_type(f.name)) for f in fields(RequestRecord)])


def _iterations_schema() -> "pa.Schema":
    import pyarrow as pa

    texts = {"wait_cause", "blocked_request"}
    return pa.schema([(f.name, pa.string() if f.name in texts else pa.int64()) for f in fields(IterationRecord)])


def _request_to_row(record: RequestRecord) -> dict[str, Any]:
    row = {f.name: getattr(record, f.name) for f in fields(RequestRecord)}
    row["history"] = json.dumps(
        [[e.time_ns, e.kind, e.tokens, e.blocks, e.detail] for e in record.history], separators=(",", ":")
    )
    return row


def _request_from_row(row: dict[str, Any]) -> RequestRecord:
    return RequestRecord(
        **row
        | {
            "chunk_times": tuple(row["chunk_times"]),
            "chunk_tokens": tuple(row["chunk_tokens"]),
            "history": tuple(RequestEvent(*event) for event in json.loads(row["history"])),
        }
    )
