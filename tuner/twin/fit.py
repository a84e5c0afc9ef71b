"""Learn a device's step times and memory from what its runs recorded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.executor.learnt_device import LearntDevice, MemoryModel
from engine.executor.step_times import StepShape, StepTimes

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from workloads.records import RunRecord

ENOUGH_STEPS = 30
# Huber's weight for residuals beyond this many times their usual size: as good as least squares to 95 % where there are
# no outliers (Huber, "Robust Statistics", 1981).
_HUBER = 1.345
_ROUNDS = 8
_QUANTILES = 201


def measured_steps(iterations: "pd.DataFrame") -> "tuple[StepShape, np.ndarray]":
    """The shapes of a run's steps as arrays `[steps]`, and their durations in seconds.

    A step that begins as soon as the one before it has ended counts from that end, so that what the host does in
    between is part of it. Steps that computed nothing, or swapped blocks, are left out.
    """
    import numpy as np

    if "replica" in iterations and iterations["replica"].nunique() > 1:
        # They run at once, but the steps of each follow one another.
        iterations = iterations.sort_values(["replica", "t_start"], kind="stable")
    column = {name: iterations[name].to_numpy(dtype=np.float64) for name in iterations.columns if name in _COLUMNS}
    begin, end = column["t_start"], column["t_end"]
    # After a longer pause there was nothing to do.
    pause = np.maximum(np.append(0.0, begin[1:] - end[:-1])[: len(begin)], 0.0)
    seconds = (end - begin + np.where(pause < end - begin, pause, 0.0)) / 1e9
    requests = column["prefill_seqs"] + column["decode_seqs"]
    swapped = column["swapped_in_blocks"] + column["swapped_out_blocks"]
    worked = (requests > 0) & (seconds > 0) & (swapped == 0)
    parts = (requests, *(column[name] for name in StepShape._fields[1:]))
    return StepShape(*(part[worked] for part in parts)), seconds[worked]


_COLUMNS = (
    *("t_start", "t_end", "prefill_seqs", "decode_seqs", "swapped_in_blocks", "swapped_out_blocks"),
    *StepShape._fields[1:],
)


def fit_step_times(shape: StepShape, seconds: "np.ndarray") -> StepTimes:
    """Learn step times.

    Non-negative least squares on relative errors (a step of a millisecond counts as much as one of a second), repeated
    with Huber's weights so that the hiccups of a shared machine do not pull the rest. The sums over steps are formed
    first, so that solving takes the same time for any number of them.

    Args:
        shape: arrays `[steps]`.
        seconds: their durations, > 0, `[steps]`.

    Raises:
        UserError: too few steps to learn from.
    """
    import numpy as np
    from scipy.optimize import nnls

    if len(seconds) < ENOUGH_STEPS:
        raise UserError(f"{len(seconds)} steps are too few to learn from: give runs with at least {ENOUGH_STEPS}")
    terms = np.stack([np.asarray(term, dtype=np.float64) for term in shape.terms()], axis=1)
    largest = terms.max(axis=0)
    seen = largest > 0
    scale = np.where(seen, largest, 1.0)
    relative = terms / scale / seconds[:, None]
    trust = np.ones(len(seconds))
    weights = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        trusted = relative * trust[:, None]
        gram, target = trusted.T @ relative, trusted.sum(axis=0)
        # A grain of ridge tells terms apart that the steps seen cannot.
        lower = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) * np.eye(len(gram)))
        weights, _ = nnls(lower.T, np.linalg.solve(lower, target))
        # Of what no step had there may be a grain left, of which a step that has it would get its full size.
        weights = np.where(seen, weights, 0.0)
        errors = relative @ weights - 1.0
        usual = 1.4826 * np.median(np.abs(errors - np.median(errors))) + 1e-12
        trust = np.minimum(1.0, _HUBER * usual / np.maximum(np.abs(errors), 1e-12))
    residual = -np.log(np.maximum(relative @ weights, 1e-12))
    return StepTimes(
        weights=tuple((weights / scale).tolist()),
        jitter=tuple(np.quantile(residual, np.linspace(0, 1, _QUANTILES)).tolist()),
        memory=_memory(residual),
        largest=StepShape(*(float(np.max(part)) for part in shape)),
        steps=len(seconds),
    )


def paced(times: StepTimes, parts: "Sequence[tuple[StepShape, np.ndarray]]") -> StepTimes:
    """The same step times at the pace of some runs: all scaled by one factor, the median over their steps.

    Args:
        parts: shapes `[steps]` and seconds `[steps]` of each run.
    """
    import numpy as np

    pace = float(np.median(np.concatenate([seconds / times.seconds(shape) for shape, seconds in parts])))
    jitter = np.quantile(times.jitter, 0.5)  # the median step is what is matched, so its jitter has to be none
    return replace(
        times,
        weights=tuple(weight * pace for weight in times.weights),
        jitter=tuple(float(value - jitter) for value in times.jitter),
    )


def relative_errors(device: LearntDevice, runs: Iterable["RunRecord"]) -> tuple[float, float]:
    """How far the steps of runs lie from their prediction: the error that half of them, and nine tenths, stay below."""
    import numpy as np

    errors = []
    for record in runs:
        shape, seconds = measured_steps(record.iterations)
        errors.append(np.abs(seconds / device.times.seconds(shape) - 1))
    usual, large = np.quantile(np.concatenate(errors), (0.5, 0.9))
    return float(usual), float(large)


def _memory(residual: "np.ndarray") -> float:
    """Correlation of the normal scores of neighbours."""
    import numpy as np
    from scipy.stats import norm, rankdata

    scores = norm.ppf((rankdata(residual) - 0.5) / len(residual))
    if np.ptp(scores) == 0:
        return 0.0
    return float(np.clip(np.corrcoef(scores[1:], scores[:-1])[0, 1], 0.0, 0.99))


def fit_memory(memories: Sequence[Mapping[str, Any]], settings: Sequence[Mapping[str, Any]]) -> MemoryModel:
    """Learn a step's peak from the `memory` and `settings` of runs, by non-negative least squares.

    With one size of step alone, all of its peak is put down to its tokens: a larger one then needs more in proportion.
    """
    import numpy as np
    from scipy.optimize import nnls

    tokens = np.array([s["max_num_batched_tokens"] for s in settings], dtype=np.float64)
    peaks = np.array([m["peak_activation_bytes"] for m in memories], dtype=np.float64)
    fixed = np.full(len(tokens), float(len(set(tokens.tolist())) > 1))
    scale = tokens.max()
    weights, _ = nnls(np.stack([fixed, tokens / scale], axis=1), peaks)
    last = memories[-1]
    return MemoryModel(
        last["total_bytes"], last["weights_bytes"], last["other_bytes"], float(weights[0]), float(weights[1] / scale)
    )


def require_measured(runs: Iterable["RunRecord"]) -> None:
    """Refuse runs of which nothing could be learnt about a real device.

    Raises:
        UserError: one of them is simulated.
    """
    if any(record.meta["simulated"] for record in runs):
        raise UserError("a simulated run teaches nothing about a device: give runs that were measured")


def learn_device(runs: Iterable["RunRecord"], earlier: Iterable["RunRecord"] = ()) -> LearntDevice:
    """Learn a device from runs of one model on it.

    Args:
        runs: of now.
        earlier: of other days. They teach how steps compare, and `runs` how fast the device is today: a machine that
            is shared, or throttled, is not the same every day.

    Raises:
        UserError: no run, runs of several models or devices, or too few steps.
    """
    import numpy as np

    own = list(runs)
    records = [*earlier, *own]
    if not own:
        raise UserError("there is no run to learn from: give the folders of runs or of a study")
    metas = [record.meta for record in records]
    for what, values in (
        ("models", {_model_and_types(m["model"]) for m in metas}),
        ("devices", {m["device"]["name"] for m in metas}),
    ):
        if len(values) > 1:
            raise UserError(f"the runs are of different {what} ({', '.join(sorted(values))}): give runs of one")
    parts = [measured_steps(record.iterations) for record in records]
    shape = StepShape(*(np.concatenate(part) for part in zip(*(shape for shape, _ in parts), strict=True)))
    times = fit_step_times(shape, np.concatenate([seconds for _, seconds in parts]))
    if len(own) < len(records):
        times = paced(times, parts[-len(own) :])
    model, device = metas[-1]["model"], metas[-1]["device"]
    links = [link for meta in metas if (link := meta["memory"].get("host_link_bytes_per_s")) is not None]
    return LearntDevice(
        name=device["name"],
        kind=device["kind"],
        model=model["name"],
        dtype=model["dtype"],
        link_bytes_per_s=float(np.median(links)) if links else None,
        memory=fit_memory([m["memory"] for m in metas], [m["settings"] for m in metas]),
        times=times,
        runs=len(records),
        tensor_parallel_size=device.get("tensor_parallel_size", 1),
        kv_cache_dtype=model.get("kv_cache_dtype"),
    )


def _model_and_types(model: Mapping[str, Any]) -> str:
    kept = f", KV cache in {model['kv_cache_dtype']}" if "kv_cache_dtype" in model else ""
    return f"{model['name']} in {model['dtype']}{kept}"
