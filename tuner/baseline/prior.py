"""What a study takes over from a baseline: its settings to try first, and its runs to learn the device from."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tuner.baseline.record import Baseline
from tuner.earlier import why_not
from tuner.prior import MOST_RUNS, MOST_TRIES, Prior, projected
from tuner.space import SearchSpace


def with_baseline(
    prior: Prior, baseline: Baseline, record: Mapping[str, Any], space: SearchSpace, say: Callable[[str], None]
) -> Prior:
    """A prior with a baseline in front of what earlier studies say.

    Its settings are worth a try on any device; what its steps took says something only of the same one.

    Args:
        record: the `study.json` of the new study.
        space: its own; the settings are projected into it.

    Raises:
        UserError: the baseline has a setting that this version does not know.
    """
    settings = projected(baseline.settings, space)
    tries = prior.tries
    if settings is None:
        say(f"the settings of the baseline {baseline.name} lie outside of what is searched")
    elif settings != space.fixed.canonical():
        tries = tuple(dict.fromkeys((settings, *prior.tries)))[:MOST_TRIES]
    runs = prior.runs
    device = {"options": {"arguments": {"device": baseline.target_options.device}}}
    if reason := why_not({**baseline.record, **device}, record):
        say(f"nothing is learnt from the runs of the baseline {baseline.name}: {reason}")
    else:
        runs = (*reversed(baseline.run_folders), *prior.runs)[:MOST_RUNS]
    return replace(prior, tries=tries, runs=runs, studies=(f"{baseline.name} (baseline)", *prior.studies))
