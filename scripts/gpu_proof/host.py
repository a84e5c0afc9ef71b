"""Part 5: what the host does in a step, and how long the device waits for it, with and without graphs and overlap."""

from dataclasses import asdict

from engine.engine import Engine
from engine.errors import OutOfDeviceMemory
from engine.host_phases import Phase, PhaseMark
from scripts.gpu_proof.modes import MODES, Mode
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.served import idle_share, in_repeats, load_in_mode, period_s, steady_decode
from scripts.gpu_proof.sizes import Sizes
from scripts.gpu_proof.timing import Spread


def measure(sizes: Sizes, notes: Notes) -> None:
    """Steady decode of both models in every mode."""
    notes.set(
        goal_model=sizes.model,
        goal_batches=list(sizes.host_batches),
        host_counts="planning, taking in, laying out, launching and sampling; waiting for tokens is left out",
        idle_counts="share of the time between the end of one step and the beginning of the next on the device; what "
        "lies between the kernels of one step counts as its work, so compare the modes by the time of a step",
    )
    for model in (sizes.model, sizes.small_model):
        for mode in MODES:
            with notes.attempt(f"{model.partition(':')[2]}, {mode.name}", model=model, mode=mode.name):
                _measure_mode(sizes, notes, model, mode)


def _measure_mode(sizes: Sizes, notes: Notes, model: str, mode: Mode) -> None:
    executor = load_in_mode(sizes, model, mode, max_model_len=2 * sizes.host_context + 512, dtype=sizes.dtype)
    for batch in sizes.host_batches:
        what = f"{model.partition(':')[2]}, batch {batch}, {mode.name}"
        marks: list[PhaseMark] = []

        def listen(engine: Engine, marks: list[PhaseMark] = marks) -> None:
            engine.phases.listener = marks.append

        steps = sizes.host_steps * sizes.repeats
        try:
            records = steady_decode(
                executor,
                sizes,
                batch=batch,
                context=sizes.host_context,
                steps=steps,
                between=listen,
            )
        except OutOfDeviceMemory as error:
            notes.add(what, f"not possible: {error}", model=model, mode=mode.name, batch=batch, idle_share=None)
            continue
        finally:
            executor.phases.listener = None
        step = Spread.of([sum(map(period_s, part)) / len(part) for part in in_repeats(records, sizes.repeats)])
        phases = {phase.value: _ms_per_step(marks, phase, steps) for phase in Phase}
        host_ms = sum(ms for name, ms in phases.items() if name != Phase.READ_BACK)
        idle = Spread.of([idle_share(part) for part in in_repeats(records, sizes.repeats)])
        notes.add(
            what,
            f"{step.median * 1e3:.3f} ms a step, host {host_ms:.3f} ms, device idle {100 * idle.median:.1f} %",
            model=model,
            mode=mode.name,
            batch=batch,
            step_s=asdict(step),
            host_ms=host_ms,
            phases_ms=phases,
            idle_share=asdict(idle),
        )
    executor.shutdown()


def _ms_per_step(marks: list[PhaseMark], phase: Phase, steps: int) -> float:
    return sum(mark.end_ns - mark.begin_ns for mark in marks if mark.phase is phase) / steps / 1e6
