"""What a study took over from earlier ones, in words."""

from collections.abc import Mapping
from typing import Any


def warm_start_text(warm_start: Mapping[str, Any] | None) -> str | None:
    """One line on the `warm_start` of a `study.json`; None where nothing was taken over."""
    if not warm_start or not warm_start["studies"]:
        return None
    counted = (
        (warm_start["tries"], "setting", "settings", "to try first"),
        (warm_start["failed"], "setting", "settings", "known to fail"),
        (warm_start["runs"], "run", "runs", "to learn from"),
    )
    taken = [f"{number} {one if number == 1 else many} {what}" for number, one, many, what in counted if number]
    number = len(warm_start["studies"])
    earlier = f"{number} earlier {'study' if number == 1 else 'studies'}"
    return f"warm start from {earlier}: {', '.join(taken) or 'nothing'}"
