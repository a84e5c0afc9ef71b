"""What a user should know of the settings that were given, in one line each."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.scheduler.waiting_queue import ORDERS
from reports.settings import assignment
from tuner.settings import Settings, parse_assignment

if TYPE_CHECKING:
    from tuner.trial import Trial
    from workloads.slo import Slo
    from workloads.spec import WorkloadSpec

DEFAULT_QUEUE_DELAY_S = 0.1

Say = Callable[[str], None]


def chosen_settings(texts: Sequence[str], say: Say) -> Settings:
    """The default settings with those of `--set`, for a command that runs with nothing else.

    Raises:
        UserError: see `Settings.override`.
    """
    asked, given = Settings().override(texts), [parse_assignment(text)[0] for text in texts]
    settings = with_queue_delay(asked, (asked.batching,), given, say)
    say_inert(given, (settings,), say)
    return settings


def with_queue_delay(settings: Settings, batchings: Collection[str], given: Collection[str], say: Say) -> Settings:
    """The settings with a delay where dynamic batching is to be tried and the user gave none.

    Without a delay no batch waits to grow, and dynamic batching with all seats is static under another name.

    Args:
        batchings: the modes to be tried.
        given: names that the user has set, searches or compares.
    """
    if "dynamic" not in batchings or "max_queue_delay" in given:
        return settings
    delay = assignment("max_queue_delay", DEFAULT_QUEUE_DELAY_S)
    say(f"{delay} for the dynamic batches, which would not wait to grow without one; --set max_queue_delay changes it")
    return replace(settings, max_queue_delay=DEFAULT_QUEUE_DELAY_S)


def say_inert(given: Iterable[str], tried: Collection[Settings], say: Say) -> None:
    """Name the settings that the user gave and that do nothing.

    Args:
        given: names that the user has set.
        tried: the settings that are to be measured, as far as they decide what acts.
    """
    for name in dict.fromkeys(given):
        beside = dict.fromkeys(settings.inert_beside(name) for settings in tried)
        values = {getattr(settings, name) for settings in tried}
        if None not in beside and values != {getattr(Settings(), name)}:
            what = ", ".join(assignment(name, value) for value in values)
            say(f"{what} does nothing beside {' or '.join(map(str, beside))}")


def say_near_duplicates(option: str, values: Sequence[Any], spec: "WorkloadSpec", say: Say) -> None:
    """Name the values of a compared option between which this workload makes next to no difference."""
    if option == "policy" and len({c.priority for c in spec.request_classes.values()}) == 1:
        alike = {policy: "sjf" if ORDERS[policy].by_size else "fcfs" for policy in values if ORDERS[policy].by_priority}
        if alike:
            orders = " and ".join(f"{policy} orders them as {other} does" for policy, other in alike.items())
            say(f"all requests of {spec.name} have the same priority: {orders}, except after preemptions")
    if option == "retried_first" and not spec.retries:
        say(f"no request of {spec.name} is sent again (retries: 0): retried_first moves only those that were preempted")


def missed_everywhere(trial: "Trial", slo: "Slo") -> str:
    """That the default settings held none of the rates at which they were measured, or broke off at one of them."""
    if trial.error:
        return f"the default settings broke off at their highest rate ({trial.error}); looking for some that do not"
    rates = sorted(run.rate for run in trial.runs if run.rate is not None)
    text = f"the default settings do not meet {slo}"
    if rates:
        between = (
            f"{rates[0]:.3g}"
            if len(rates) == 1
            else f"any of {len(rates)} rates from {rates[0]:.3g} to {rates[-1]:.3g}"
        )
        text += f" at {between} requests/s"
    settings = trial.settings
    if len(rates) > 1 and settings.batching == "dynamic" and settings.max_queue_delay:
        delay = assignment("max_queue_delay", settings.max_queue_delay)
        text += f" (lower ones need not be easier: with {delay} a batch that does not fill waits for so long)"
    return f"{text}; looking for some that do"
