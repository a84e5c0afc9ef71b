"""What the GPU path should reach on an H200, and whether it did. Shares are of what the same card was seen to do."""

from collections.abc import Iterator, Mapping
from typing import Any

from scripts.gpu_proof.launcher import DONE
from scripts.gpu_proof.modes import AS_SERVED
from scripts.gpu_proof.parts import DECODE, HOST, KERNELS, PREFILL
from scripts.search_proof.goals import goal, percent

LEAST_DECODE_SHARE = {1: 0.75, 32: 0.80, 128: 0.80, 256: 0.80}
"""Of the copy ceiling, by batch. At 256 rows the products take longer than the weights take to read: on an H200 that
copies 4.3 TB/s and multiplies at 788 TFLOP/s the most that can be is 84 %."""
LEAST_PREFILL_SHARE = {8192: 0.65}
"""Of the matrix ceiling, by tokens of the prompt."""
MOST_IDLE_SHARE = 0.03

NOT_MEASURED = "not measured"
Parts = Mapping[int, Mapping[str, Any]]
Goal = dict[str, Any]


def correctness_goals(parts: Parts) -> list[Goal]:
    """What holds on any device, a CPU with interpreted kernels included."""
    if KERNELS not in parts:
        return []
    rows = parts[KERNELS]["rows"]
    wrong = [row["what"] for row in rows if not row["ok"]]
    found = f"{len(rows) - len(wrong)} of {len(rows)} checks" if rows else NOT_MEASURED
    return [
        goal(
            "kernels within their tolerance of float32",
            met=bool(rows) and not wrong and parts[KERNELS]["state"] == DONE,
            found=f"{found}; wrong: {'; '.join(wrong)}" if wrong else found,
        )
    ]


def speed_goals(parts: Parts) -> list[Goal]:
    """Those of the parts that were run. A figure that a part did not come to misses its goal.

    A ceiling is the best that any part measured, so that none is flattered by a slow moment of its own.
    """
    return [*_decode(parts), *_prefill(parts), *_idle(parts)]


def ceiling(parts: Parts, name: str) -> float | None:
    """The best `copy_gb_per_s` or `product_tflops` of all parts; None when none was measured."""
    return max((part[name] for part in parts.values() if part.get(name)), default=None)


def _decode(parts: Parts) -> Iterator[Goal]:
    if DECODE in parts:
        for batch, least in LEAST_DECODE_SHARE.items():
            yield _share(
                f"decode, batch {batch}: at least {percent(least, 0)} of the copy ceiling",
                _median(parts[DECODE], "gb_per_s", batch=batch),
                ceiling(parts, "copy_gb_per_s"),
                least,
                "GB/s",
            )


def _prefill(parts: Parts) -> Iterator[Goal]:
    if PREFILL in parts:
        for tokens, least in LEAST_PREFILL_SHARE.items():
            yield _share(
                f"prefill, {tokens} tokens: at least {percent(least, 0)} of the matrix ceiling",
                _median(parts[PREFILL], "tflops", tokens=tokens),
                ceiling(parts, "product_tflops"),
                least,
                "TFLOP/s",
            )


def _idle(parts: Parts) -> Iterator[Goal]:
    """Of the larger model, run as it is served."""
    if HOST not in parts:
        return
    part = parts[HOST]
    served = {"mode": AS_SERVED.name, "model": part.get("goal_model")}
    for batch in part.get("goal_batches") or [None]:
        share = _median(part, "idle_share", batch=batch, **served)
        yield goal(
            f"steady decode{'' if batch is None else f', batch {batch}'}: device idle for less than "
            f"{percent(MOST_IDLE_SHARE, 0)} of the time",
            met=share is not None and share < MOST_IDLE_SHARE,
            found=NOT_MEASURED if share is None else percent(share, 2),
        )


def _share(text: str, value: float | None, most: float | None, least: float, unit: str) -> Goal:
    if value is None or most is None:
        return goal(text, met=False, found=NOT_MEASURED)
    found = f"{percent(value / most)} ({value:.4g} of {most:.4g} {unit})"
    return goal(text, met=value >= least * most, found=found)


def _median(part: Mapping[str, Any], figure: str, **where: object) -> float | None:
    """The median of a figure in the row that has these values; None where it has none, or there is no such row."""
    spreads = (row.get(figure) for row in part["rows"] if _is(row, **where))
    return next((spread["median"] for spread in spreads if spread is not None), None)


def _is(row: Mapping[str, Any], **where: object) -> bool:
    return all(row.get(key) == value for key, value in where.items())
