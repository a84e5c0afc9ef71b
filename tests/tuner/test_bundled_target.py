"""The bundled engine as a thing to measure: it is sound again after whatever went wrong in a run."""

from dataclasses import replace

import pytest

from engine.errors import KVCacheTooSmall, OutOfDeviceMemory
from engine.executor.base import StepResult
from engine.executor.simulated import SimulatedExecutor
from engine.scheduler.plan import StepPlan
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget, Load, Measured, TargetOptions
from workloads.slo import parse_slo
from workloads.spec import load_spec

LOAD = Load(rate=6.0, seed=3, warmup_s=1.0, window_s=5.0)
SLO = parse_slo(["p95_ttft=1s"])
SETTINGS = Settings(max_num_seqs=16)


def make_target() -> BundledTarget:
    options = TargetOptions("random:qwen2.5-7b", "sim:l4")
    return BundledTarget(options, load_spec("chat-small", ["output_tokens=uniform:4..16"]), SETTINGS)


@pytest.fixture
def undisturbed() -> Measured:
    return make_target().measure(SETTINGS, LOAD, SLO)


def assert_equal(measured: Measured, other: Measured) -> None:
    assert measured.requests == other.requests
    assert measured.iterations == other.iterations
    metas = [{key: value for key, value in m.meta.items() if key != "created"} for m in (measured, other)]
    assert metas[0] == metas[1]


def fail_after(monkeypatch: pytest.MonkeyPatch, steps: int, error: BaseException) -> None:
    execute, count = SimulatedExecutor.execute, iter(range(1_000_000))

    def failing(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        if next(count) >= steps:
            raise error
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", failing)


@pytest.mark.parametrize("error", [OutOfDeviceMemory("no room"), RuntimeError("crash")], ids=lambda e: str(e))
def test_a_failed_run_is_returned_with_its_reason_and_the_next_is_as_if_it_had_not_been(
    monkeypatch: pytest.MonkeyPatch, undisturbed: Measured, error: Exception
) -> None:
    target = make_target()
    with monkeypatch.context() as context:
        fail_after(context, 20, error)
        broken = target.measure(SETTINGS, LOAD, SLO)
    assert broken.error == f"{type(error).__name__}: {error}"
    assert broken.meta["stopped_early"] == f"failed: {broken.error}"
    assert len(broken.iterations) == 20
    assert {r.status for r in broken.requests} <= {"ok", "failed"}
    assert not target.engine.has_work
    assert_equal(target.measure(SETTINGS, LOAD, SLO), undisturbed)


def test_an_interrupted_run_leaves_an_idle_engine(monkeypatch: pytest.MonkeyPatch, undisturbed: Measured) -> None:
    target = make_target()
    with monkeypatch.context() as context:
        fail_after(context, 20, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            target.measure(SETTINGS, LOAD, SLO)
    assert not target.engine.has_work
    assert_equal(target.measure(SETTINGS, LOAD, SLO), undisturbed)


def test_an_engine_that_does_not_recover_in_place_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch, undisturbed: Measured
) -> None:
    target = make_target()
    first = target.executor
    with monkeypatch.context() as context:
        fail_after(context, 20, RuntimeError("crash"))
        # Before the run; after it has failed, then for the settings before; once the engine is loaded again.
        outcomes = iter([None, RuntimeError("the device is lost"), None, None])

        def allocate(*_: object) -> None:
            if (error := next(outcomes)) is not None:
                raise error

        context.setattr(SimulatedExecutor, "allocate_kv", allocate)
        assert target.measure(SETTINGS, LOAD, SLO).error == "RuntimeError: crash"
    assert target.executor is not first
    assert_equal(target.measure(SETTINGS, LOAD, SLO), undisturbed)


def test_settings_that_do_not_fit_raise_and_leave_the_engine_usable(undisturbed: Measured) -> None:
    target = make_target()
    with pytest.raises(KVCacheTooSmall, match=r"gpu_memory_utilization=0\.5"):
        target.measure(Settings(gpu_memory_utilization=0.5), LOAD, SLO)
    assert_equal(target.measure(SETTINGS, LOAD, SLO), undisturbed)


def test_what_was_measured_before_has_no_influence(undisturbed: Measured) -> None:
    target = make_target()
    target.burst(SETTINGS, 32, seed=0)
    target.measure(Settings(max_num_seqs=4, enable_prefix_caching=False), LOAD, None)
    assert_equal(target.measure(SETTINGS, LOAD, SLO), undisturbed)


def test_smallest_utilization_is_the_edge_of_what_works() -> None:
    target = make_target()
    smallest = target.smallest_utilization(SETTINGS, 2048)
    fits = Settings(max_num_seqs=16, max_num_batched_tokens=2048, gpu_memory_utilization=smallest + 0.001)
    short = Settings(max_num_seqs=16, max_num_batched_tokens=2048, gpu_memory_utilization=smallest - 0.001)
    target.engine.reconfigure(scheduler=fits.scheduler(), cache=fits.cache())
    with pytest.raises(KVCacheTooSmall):
        target.engine.reconfigure(scheduler=short.scheduler(), cache=short.cache())


SWAPPING = Settings(max_num_seqs=16, preemption_mode="swap", swap_space=1 << 30)


def test_the_record_says_how_much_host_memory_blocks_have_and_how_fast_it_is(undisturbed: Measured) -> None:
    memory = make_target().measure(SWAPPING, LOAD, None).meta["memory"]
    assert memory["num_swap_blocks"] == (1 << 30) // memory["bytes_per_block"] > 0
    assert memory["host_link_bytes_per_s"] > 0
    without = undisturbed.meta["memory"]
    assert without["bytes_per_block"] == memory["bytes_per_block"]
    assert (without["num_swap_blocks"], without["host_link_bytes_per_s"]) == (0, None)


def test_a_workload_without_classes_is_summarised_as_one(undisturbed: Measured) -> None:
    assert set(undisturbed.meta["classes"]) == {"all"}
    assert undisturbed.meta["classes"]["all"]["requests"] == undisturbed.meta["window"]["requests"]


LIMITED = replace(
    SETTINGS, max_queue_len=1, max_queue_tokens=1, queue_timeout=0.001, max_predicted_wait=0.001, max_num_seqs=2
)  # fmt: skip


def test_a_burst_measures_the_capacity_of_settings_that_would_turn_it_away() -> None:
    assert make_target().burst(LIMITED, 32, seed=0) == make_target().burst(Settings(max_num_seqs=2), 32, seed=0)


def test_a_burst_does_not_wait_for_a_batch_to_grow_since_that_is_no_want_of_capacity() -> None:
    waiting = Settings(max_num_seqs=64, batching="dynamic", max_queue_delay=3.0)
    static = Settings(max_num_seqs=64, batching="static")
    assert make_target().burst(waiting, 32, seed=0) == make_target().burst(static, 32, seed=0)


def test_a_burst_has_batches_of_the_preferred_size() -> None:
    preferred = Settings(max_num_seqs=64, batching="dynamic", max_queue_delay=3.0, preferred_batch_size=8)
    of_eight = Settings(max_num_seqs=8, batching="static")
    assert make_target().burst(preferred, 32, seed=0) == make_target().burst(of_eight, 32, seed=0)


def test_a_burst_serves_urgent_classes_first_under_a_policy_that_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []
    execute = SimulatedExecutor.execute

    def watch(self: SimulatedExecutor, plan: StepPlan) -> StepResult:
        served.extend(share.request.priority for share in plan.scheduled if not share.is_decode)
        return execute(self, plan)

    monkeypatch.setattr(SimulatedExecutor, "execute", watch)
    target = BundledTarget(TargetOptions("random:qwen2.5-7b", "sim:l4"), load_spec("mixed-small"), SETTINGS)
    target.burst(Settings(max_num_seqs=4, policy="priority"), 32, seed=0)
    assert set(served) == {0, 1}
    assert served == sorted(served)
