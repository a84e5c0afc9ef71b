"""A stored record read strictly: its kind, its schema, and the shape that the reports rely on."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UserError
from workloads.records import SCHEMA_VERSION, refuse_constant

Shape = Mapping[str, type | tuple[type, ...]]

_JSON_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def read_record(path: Path, kind: str) -> dict[str, Any]:
    """The content of a record's JSON file.

    Raises:
        UserError: it is missing, damaged, of another kind, or of a schema that this version does not read.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise UserError(f"{path} is damaged: it holds a {type(record).__name__}, not an object")
    if record.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"{path} has schema_version {record.get('schema_version')!r}; this version of tune reads {SCHEMA_VERSION}"
        )
    if record.get("kind") != kind:
        raise UserError(f"{path} has kind {record.get('kind')!r}; the record of a {kind} has kind {kind!r}")
    return record


def require_shape(record: Any, shape: Shape, where: str) -> None:
    """Check that `record` has every key of `shape` with a value of its type.

    Raises:
        UserError: it does not; names `where`, the key and what belongs there.
    """
    if not isinstance(record, dict):
        raise UserError(f"{where} is damaged: it is {record!r}, where an object belongs")
    for key, kind in shape.items():
        if key not in record:
            raise UserError(f"{where} is damaged: {key} is missing")
        if not isinstance(record[key], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            right = " or ".join("null" if k is type(None) else _JSON_NAMES[k] for k in kinds)
            raise UserError(f"{where} is damaged: {key} is {record.get(key)!r}, where {right} belongs")
