"""The settings of a candidate: the baseline's, with what a file and the command line change."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import UserError
from reports.settings import assignment
from tuner.kinds import OFF
from tuner.settings import Settings, parse_value, require_known


def candidate_settings(base: Settings, file: str | None, assignments: Sequence[str]) -> Settings:
    """What the candidate is measured with.

    Args:
        base: the baseline's settings.
        file: see `read_settings`; None for none.
        assignments: `name=value`; they win over the file.

    Raises:
        UserError: a file or a value that cannot be.
    """
    if file is not None:
        base = replace(base, **read_settings(Path(file)))
    return base.override(assignments)


def read_settings(path: Path) -> dict[str, Any]:
    """Settings from a YAML or JSON file: a mapping of names to values, or a record that has one as its `settings`.

    So a `best.json`, a `run.json` and a `baseline.json` can be given as they are. Values are those of a record, or
    texts as `--set` takes them.

    Raises:
        UserError: no such file, not a mapping, an unknown name, or a value that cannot be.
    """
    import yaml

    try:
        # JSON is YAML, too.
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--settings {str(path)!r} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"--settings {str(path)!r} is neither JSON nor YAML: {' '.join(str(error).split())}") from None
    if isinstance(content, Mapping) and "settings" in content:
        if content["settings"] is None:
            raise UserError(f"--settings {str(path)!r} recommends none: no setting of its study met the SLO")
        content = content["settings"]
    if not isinstance(content, Mapping) or not content:
        raise UserError(f"--settings {str(path)!r} holds no settings: write for example max_num_seqs: 96")
    return {str(name): _value(str(name), value) for name, value in content.items()}


def _value(name: str, value: Any) -> Any:
    require_known(name)
    # YAML reads off as false, whatever the setting.
    text = OFF if value is False else value if isinstance(value, str) else assignment(name, value).partition("=")[2]
    return parse_value(name, text)
