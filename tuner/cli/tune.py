"""`tune` with options and no sub-command: a study, new or resumed."""

import datetime
import json
import shlex
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.build import find_device
from engine.errors import UserError
from engine.kv_cache.sizing import GIB
from reports.warm_start import warm_start_text
from tuner.arguments import TuneArguments
from tuner.baseline.prior import with_baseline
from tuner.baseline.record import Baseline
from tuner.baseline.store import open_baseline
from tuner.budget import Budget
from tuner.cli.output import INTERRUPTED_CODE, print_json, print_summary, this_command
from tuner.earlier import AUTO, OFF, EarlierStudy, find_earlier
from tuner.environment import tool_version
from tuner.folders import new_folder, require_writable
from tuner.lock import alone_in
from tuner.notices import say_inert, with_queue_delay
from tuner.objectives import objectives_record, require_one_load
from tuner.prior import Prior, gather
from tuner.progress import ProgressDisplay
from tuner.runner import RunLengths, Runner
from tuner.search import BaselineFailed, StudyOptions, Tuner
from tuner.settings import Settings
from tuner.space import SearchSpace, default_space, with_search
from tuner.store import BEST_FILE, StudyStore
from tuner.strategies.base import Strategy
from tuner.strategies.registry import chosen, require_objectives, strategy_named
from tuner.targets.bundled import BundledTarget
from tuner.units import parse_duration_s
from workloads.slo import Slo

DEFAULT_BUDGET = "9m"
DEFAULT_SIMULATED_TRIALS = 40


def run_study(arguments: TuneArguments, *, out: str | None, resume: str | None, as_json: bool) -> int:
    """Run or resume a study and write its reports.

    Returns:
        Exit code: 0, 1 when no setting met the SLO, 130 when interrupted; the state is stored then.

    Raises:
        UserError: bad input, another process at work on the study, or a baseline that cannot be measured. A new study
            that was refused before anything was measured leaves no folder.
    """
    from rich.console import Console

    display = ProgressDisplay(Console(stderr=True))
    with ExitStack() as stack:
        store = None
        if resume is not None:
            stack.enter_context(alone_in(Path(resume)))
            store = StudyStore.open(Path(resume))
            arguments = _resumed_arguments(store, arguments)
        tuner = _prepare(arguments, store, out, display)
        if resume is None:
            stack.enter_context(alone_in(tuner.store.path))
        return _run(tuner, is_new=resume is None, as_json=as_json)


def _prepare(arguments: TuneArguments, store: StudyStore | None, out: str | None, display: ProgressDisplay) -> Tuner:
    """Everything that can be refused before the first run is made; a new study's folder is made last."""
    slo = arguments.parse_slo()
    if slo is None:
        raise UserError("there is nothing to tune for: give an objective, such as --slo p95_ttft=1s")
    objectives = arguments.parse_objectives()
    strategy_name = chosen(arguments.strategy, None if store is None else store.record["options"]["strategy"])
    strategy = strategy_named(strategy_name)
    rate, spec = arguments.parse_rate(), arguments.load_workload()
    require_one_load(objectives, rate, spec)
    require_objectives(strategy_name, objectives)
    simulated = find_device(arguments.device).startswith("sim:")
    limits = _limits(arguments, simulated)
    lengths = arguments.run_lengths(limits[0])
    if not simulated and limits[0] is not None and store is None:
        Budget(limits[0]).require(lengths.shortest_baseline_s(rate))
    fixed = arguments.settings()
    if store is None:
        folder = new_folder(out, f"{datetime.date.today():%Y-%m-%d}-{spec.name}")
        require_writable(folder)
        earlier = _earlier(arguments, strategy, folder, display)
        baseline = _baseline(arguments, strategy)
    target = BundledTarget(arguments.target_options(), spec, fixed, display.say)
    space = _space(arguments, fixed, target, display)
    strategy.require_able(space)
    if store is None:
        record = _new_record(arguments, target, slo, space, limits, lengths)
        prior = gather(earlier, record, space)
        if baseline is not None:
            prior = with_baseline(prior, baseline, record, space, display.say)
        record["warm_start"] = prior.to_dict(folder)
        store = StudyStore.create(folder, record)
    budget = Budget(limits[0], store.record["elapsed_s"])
    display.time_left_s = lambda: budget.left_s
    runner = Runner(target, store, budget, display, slo, lengths)
    options = StudyOptions(
        rate,
        limits[1],
        arguments.seed,
        store.record["options"]["command"],
        warmup_follows_service=arguments.warmup is None,
        strategy=strategy_name,
        objectives=objectives,
        prior=Prior.restored(store.record.get("warm_start"), store.path),
    )
    _say_what(runner)
    return Tuner(runner, space, options)


def _earlier(
    arguments: TuneArguments, strategy: type[Strategy], folder: Path, display: ProgressDisplay
) -> list[EarlierStudy]:
    """The studies that a new one may learn from."""
    if strategy.warm_starts:
        return find_earlier(arguments.warm_start, folder, display.say)
    named = [where for where in arguments.warm_start if where not in (AUTO, OFF)]
    if named:
        raise UserError(
            f"--warm-start {named[0]!r}: --strategy {arguments.strategy} goes through a sequence of its own, whatever "
            "is known; leave one of the two out"
        )
    return []


def _baseline(arguments: TuneArguments, strategy: type[Strategy]) -> Baseline | None:
    """The baseline that a new study begins with; None where none is asked for."""
    if arguments.baseline is None:
        return None
    if not strategy.warm_starts:
        raise UserError(
            f"--baseline {arguments.baseline}: --strategy {arguments.strategy} goes through a sequence of its own, "
            "whatever is known; leave one of the two out"
        )
    return open_baseline(Path(arguments.store), arguments.baseline)


def _run(tuner: Tuner, *, is_new: bool, as_json: bool) -> int:
    from reports.build import write_reports

    store, display = tuner.store, tuner.display
    try:
        with display.live():
            tuner.run()
    except KeyboardInterrupt:
        write_reports(store.path)
        display.say(f"interrupted; everything measured is stored: tune --resume {shlex.quote(str(store.path))} goes on")
        return INTERRUPTED_CODE
    except Exception as error:
        if store.runs:
            write_reports(store.path)
        elif is_new and isinstance(error, UserError) and not isinstance(error, BaselineFailed):
            store.discard()
        raise
    files = write_reports(store.path)
    if as_json:
        best = json.loads((store.path / BEST_FILE).read_text(encoding="utf-8"))
        print_json(best | {"folder": str(store.path), "report": str(files[0])})
    else:
        print_summary(store.path)
    return 0 if tuner.best is not None else 1


def _limits(arguments: TuneArguments, simulated: bool) -> tuple[float | None, int | None]:
    """Budget in seconds and number of trials, None for no limit."""
    budget, trials = arguments.budget, arguments.trials
    if budget is None and trials is None:
        budget = DEFAULT_BUDGET
        trials = DEFAULT_SIMULATED_TRIALS if simulated else None
    return None if budget is None else parse_duration_s("--budget", budget), trials


def _space(arguments: TuneArguments, fixed: Settings, target: BundledTarget, display: ProgressDisplay) -> SearchSpace:
    held = arguments.names_set()
    # The largest step that is searched needs the most memory, so every setting of the space has room.
    largest_step = 16384 if target.on_gpu else 4096
    space = default_space(
        fixed,
        held,
        on_gpu=target.on_gpu,
        smallest_utilization=target.smallest_utilization(fixed, largest_step),
        max_resident_requests=target.max_resident_requests(fixed, 0.95),
    )
    space = with_search(space, arguments.search)
    batchings = {settings.batching for settings in space.corners()}
    space = replace(space, fixed=with_queue_delay(fixed, batchings, [*held, *space.dimensions], display.say))
    say_inert(held, space.corners(), display.say)
    return space


def _new_record(
    arguments: TuneArguments,
    target: BundledTarget,
    slo: Slo,
    space: SearchSpace,
    limits: tuple[float | None, int | None],
    lengths: RunLengths,
) -> dict[str, Any]:
    return {
        "tool_version": tool_version(),
        "simulated": target.simulated,
        "model": target.describe_model(),
        "device": target.describe_device(),
        "environment": target.environment,
        "workload": target.spec.to_dict(),
        "slo": str(slo),
        "seed": arguments.seed,
        "command": "",
        "options": {
            "rate": arguments.parse_rate() or "auto",
            "budget_s": limits[0],
            "trials": limits[1],
            "window_s": lengths.window_s,
            "warmup_s": lengths.warmup_s,
            "strategy": chosen(arguments.strategy),
            "space": space.to_dict(),
            "arguments": asdict(arguments) | {"device": target.options.device, "model": target.options.model},
            "command": this_command(),
        },
        "state": "running",
        "reason": None,
        "elapsed_s": 0.0,
        "trials": [],
        "importance": {},
        "best": None,
        "confirmation": None,
    } | objectives_record(arguments.parse_objectives())


def _resumed_arguments(store: StudyStore, given: TuneArguments) -> TuneArguments:
    """The options that the study was started with; only its limits may be raised.

    Raises:
        UserError: other options were given, or the record does not hold its own.
    """
    allowed = {"budget": None, "trials": None}
    if replace(given, **allowed) != TuneArguments():  # type: ignore[arg-type]
        raise UserError("--resume takes the study's own options: give only --budget or --trials beside it")
    try:
        stored = TuneArguments(**store.record["options"]["arguments"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{store.path} cannot be resumed: its study.json does not hold its options ({error})") from None
    if given.budget is None and given.trials is None:
        if store.record["state"] == "complete":
            raise UserError(f"the study {store.path} is complete: give a larger --budget or --trials to go on with it")
        return stored
    # The window was chosen by the first budget; runs stay comparable only when it stays.
    window = stored.window or f"{store.record['options']['window_s']:.3f}s"
    return replace(stored, budget=given.budget or stored.budget, trials=given.trials or stored.trials, window=window)


def _say_what(runner: Runner) -> None:
    target, memory = runner.target, runner.target.engine.kv_budget
    assert memory is not None
    simulated = " (simulated)" if target.simulated else ""
    tokens = target.engine.num_blocks * target.engine.cache_config.block_size
    say = runner.display.say
    say(f"{target.source.name} on {target.executor.device_name}{simulated}, workload {target.spec.name}")
    each = " each" if target.options.data_parallel_size > 1 or target.options.tensor_parallel_size > 1 else ""
    say(
        f"memory{each} {memory.total / GIB:.1f} GiB: weights {memory.weights / GIB:.2f}, activations "
        f"{memory.peak_activation / GIB:.2f}, KV cache {memory.kv_bytes / GIB:.2f} GiB = {tokens} tokens"
    )
    if taken_over := warm_start_text(runner.store.record.get("warm_start")):
        say(taken_over)
    say(f"objective {runner.slo}; windows of {runner.lengths.window_s:.0f}s; results in {runner.store.path}")
