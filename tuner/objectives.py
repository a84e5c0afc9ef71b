"""What settings are compared by: the goodput, or one or several of the numbers of a run's summary."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import UserError

if TYPE_CHECKING:
    from tuner.trial import Trial
    from workloads.spec import WorkloadSpec

RIGHT_FORM = "write for example --objective goodput,p95_ttft"
# Stands for a latency that nobody saw, as long as there is none to compare it with. Such settings miss the SLO.
_UNANSWERED_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Objective:
    """One number of a run that is to be as good as it can be among the settings that meet the SLO.

    Attributes:
        name: as `--objective` takes it.
        key: of `summary` in `run.json`.
        title: for people, as it stands inside a sentence.
        unit: of the number: `good/s`, `requests/s`, `tokens/s` or `ms`.
        larger_is_better: false for latencies.
    """

    name: str
    key: str
    title: str
    unit: str
    larger_is_better: bool = True

    def measured(self, summary: Mapping[str, Any]) -> float | None:
        """The number itself; None where nothing was measured, but 0 for a throughput: nobody was served."""
        value = summary.get(self.key)
        return 0.0 if value is None and self.larger_is_better else value

    def at_offered_rate(self, summary: Mapping[str, Any], rate: float | None) -> float | None:
        """The number freed of how many requests happened to arrive, so that runs of other arrivals can stand beside it.

        A throughput is scaled from the rate that arrived to the one that was offered; a latency stays as it is.
        """
        value = self.measured(summary)
        if value is None or rate is None or not self.larger_is_better:
            return value
        arrived = summary["completed"] + summary["failed"]
        return value * rate * summary["duration"] / arrived if arrived else value

    def merit(self, value: float | None) -> float:
        """The larger the better; a number that is missing is the worst."""
        if value is None:
            return float("-inf")
        return value if self.larger_is_better else -value

    @property
    def latency(self) -> tuple[str, str] | None:
        """Statistic and metric, such as `p95` and `ttft`; None for a throughput."""
        statistic, _, metric = self.name.partition("_")
        return None if self.larger_is_better else (statistic, metric)

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        """As Optuna takes it."""
        return "maximize" if self.larger_is_better else "minimize"

    def to_dict(self) -> dict[str, Any]:
        """An entry of `objectives` in `study.json`."""
        return asdict(self)


GOODPUT = Objective("goodput", "request_goodput", "goodput", "good/s")
DEFAULT_OBJECTIVES = (GOODPUT,)


def _latency(statistic: str, metric: str) -> Objective:
    # `vllm bench serve` writes `e2el` in its result keys.
    key = f"{statistic}_{'e2el' if metric == 'e2e' else metric}_ms"
    title = f"{statistic} {metric.upper()}"
    return Objective(f"{statistic}_{metric}", key, title, "ms", larger_is_better=False)


_ALL = (
    GOODPUT,
    Objective("output_throughput", "output_throughput", "output tokens", "tokens/s"),
    Objective("request_throughput", "request_throughput", "throughput", "requests/s"),
    *(_latency(s, m) for m in ("ttft", "tpot", "itl", "e2e") for s in ("mean", "p50", "p90", "p95", "p99")),
)
OBJECTIVES: Mapping[str, Objective] = {objective.name: objective for objective in _ALL}


def parse_objectives(texts: Iterable[str]) -> tuple[Objective, ...]:
    """Read objectives, comma separated or one per text; the first is the main one. None at all are the default.

    Raises:
        UserError: an unknown name, a name twice, or a text that names none.
    """
    found: dict[str, Objective] = {}
    for text in texts:
        for name in map(str.strip, text.split(",")):
            objective = _objective_named(name, text)
            if name in found:
                raise UserError(f"--objective names {name} twice: name it once")
            found[name] = objective
    return tuple(found.values()) or DEFAULT_OBJECTIVES


def _objective_named(name: str, text: str) -> Objective:
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    if not name:
        raise UserError(f"--objective {text!r} has an empty name: {RIGHT_FORM}")
    near = difflib.get_close_matches(name, OBJECTIVES, n=1)
    right = f"did you mean {near[0]}?" if near else RIGHT_FORM
    raise UserError(
        f"--objective {name!r} is unknown: {right} There are goodput, output_throughput, request_throughput, and "
        "mean, p50, p90, p95 or p99 of ttft, tpot, itl and e2e"
    )


def objectives_record(objectives: Sequence[Objective]) -> dict[str, Any]:
    """What they add to `study.json`; nothing where goodput is the only one."""
    if tuple(objectives) == DEFAULT_OBJECTIVES:
        return {}
    return {"objectives": [objective.to_dict() for objective in objectives]}


def require_one_load(objectives: Sequence[Objective], rate: float | None, spec: "WorkloadSpec") -> None:
    """Refuse objectives that need all settings measured at one load, where none is given.

    Raises:
        UserError: with what to give.
    """
    if tuple(objectives) == DEFAULT_OBJECTIVES or rate is not None or not spec.is_open_loop:
        return
    names = ",".join(objective.name for objective in objectives)
    raise UserError(
        f"--objective {names} compares settings at one load, and --rate auto measures each at its own limit, where "
        "the latencies lie at the SLO's bounds by construction: give --rate in requests per second, such as --rate 6, "
        "or a closed loop, such as --arrival closed:8"
    )


def rank(trial: "Trial", objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Order of merit among settings that hold a load: by the rate they hold in fair traffic, then by each objective."""
    run = trial.decisive
    assert run is not None
    values = (objective.at_offered_rate(run.meta["summary"], run.rate) for objective in objectives)
    return (trial.fair_rate or 0.0, *(o.merit(value) for o, value in zip(objectives, values, strict=True)))


def best_text(trial: "Trial", objective: Objective) -> str:
    """A trial's main number for the progress line, such as `best 5.2 good/s`."""
    assert trial.decisive is not None
    value = objective.at_offered_rate(trial.decisive.meta["summary"], trial.decisive.rate)
    return "" if value is None else f"best {value:.3g} {objective.unit}"


def told_values(trial: "Trial", objectives: Sequence[Objective], tried: Iterable["Trial"]) -> list[float]:
    """A trial's values for Optuna, all finite, in the order of the objectives.

    Args:
        tried: all trials. One that failed, or of which a latency is unknown, has the worst that any of them had.
    """
    summary = _whole_summary(trial)
    summaries = [known for other in tried if (known := _whole_summary(other)) is not None]
    rate = None if trial.decisive is None else trial.decisive.rate
    return [_told(objective, summary, rate, summaries) for objective in objectives]


def _whole_summary(trial: "Trial") -> Mapping[str, Any] | None:
    """The summary that decides on a trial; None where it broke off."""
    run = trial.decisive
    return None if run is None or run.failure is not None or trial.error_type is not None else run.meta["summary"]


def _told(
    objective: Objective, summary: Mapping[str, Any] | None, rate: float | None, others: Sequence[Mapping[str, Any]]
) -> float:
    value = None if summary is None else objective.at_offered_rate(summary, rate)
    if value is not None:
        return value
    if objective.larger_is_better:
        return 0.0
    return max((v for other in others if (v := objective.measured(other)) is not None), default=_UNANSWERED_MS)
