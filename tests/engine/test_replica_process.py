"""What a replica does in its own process, played in a thread over a simulated device: commands, failures, news."""

import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from engine.clock import VirtualClock
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import OutOfDeviceMemory
from engine.executor import device as device_module
from engine.executor.base import StepResult
from engine.executor.simulated import FixedStepTime, SimulatedExecutor
from engine.parallel.children import Failure
from engine.parallel.replica_messages import Answer, Command, NewRequest, ShedNews, StepNews, send
from engine.parallel.replica_process import Replica
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler.plan import StepPlan
from tests.engine.late_executor import STEP_NS, LateExecutor
from tests.engine.small_replicas import SOURCE, request


class RealTime(VirtualClock):
    """A replica sleeps by the machine's clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def advance(self, duration_ns: int) -> None:
        """It does by itself."""


class FailingExecutor(SimulatedExecutor):
    """Its steps take no time, but wait at a gate. From one of them on all fail, until told otherwise."""

    fails_at: int | None = None
    steps = 0
    gate: threading.Event
    has_begun: threading.Event

    def execute(self, plan: StepPlan) -> StepResult:
        self.has_begun.set()
        self.gate.wait()
        self.steps += 1
        if self.fails_at is not None and self.steps >= self.fails_at:
            raise OutOfDeviceMemory("no room left")
        return super().execute(plan)


@pytest.fixture
def executor() -> FailingExecutor:
    executor = FailingExecutor(
        SOURCE.arch, FixedStepTime(0.0), device_name="toy", device_memory_bytes=1 << 30, max_model_len=160
    )
    executor.clock = RealTime()
    executor.gate, executor.has_begun = threading.Event(), threading.Event()
    executor.gate.set()
    return executor


@pytest.fixture
def connection() -> tuple[Connection, Connection]:
    """The parent's end, and the replica's."""
    return Pipe()


@pytest.fixture
def replica(executor: FailingExecutor, connection: tuple[Connection, Connection]) -> Replica:
    return Replica(3, Engine(executor, SchedulerConfig(), CacheConfig(num_gpu_blocks_override=40)), connection[1])


@pytest.fixture
def parent(replica: Replica, connection: tuple[Connection, Connection]) -> Iterator[Connection]:
    """What its parent has of a running replica."""
    thread = threading.Thread(target=replica.serve)
    thread.start()
    yield connection[0]
    send(connection[0], None)
    thread.join(60)
    assert not thread.is_alive()


def tell(parent: Connection, name: str, *arguments: Any, number: int = 0) -> None:
    send(parent, Command(name, arguments, number))


def add(parent: Connection, ticket: int, **options: Any) -> None:
    tell(parent, "add_request", ticket, NewRequest.of(request(f"r{ticket}", **options)))


def test_a_step_is_told_by_tickets_with_the_replica_in_its_record(parent: Connection) -> None:
    add(parent, 17, max_tokens=2)
    first, second = parent.recv(), parent.recv()
    assert isinstance(first, StepNews)
    assert [(ticket, tokens, why) for ticket, tokens, _, why in first.events] == [(17, (0,), None)]
    assert [(ticket, why) for ticket, _, _, why in second.events] == [(17, FinishReason.LENGTH)]
    assert (first.record.replica, second.record.iteration) == (3, 1)
    assert [event.kind for event in first.changes[0].events] == ["queued", "admitted", "chunk"]
    assert [event.kind for event in second.changes[0].events] == ["finished"]


def test_a_step_that_only_decodes_tells_of_tokens_alone(parent: Connection) -> None:
    add(parent, 1, max_tokens=5)
    assert [len(parent.recv().changes) for _ in range(5)] == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("command", ["reset", "reconfigure"])
def test_a_step_that_fails_is_told_once_and_the_engine_is_usable_again_after(
    parent: Connection, executor: FailingExecutor, command: str
) -> None:
    executor.fails_at = 2
    add(parent, 1)
    assert isinstance(parent.recv(), StepNews)
    failure = parent.recv()
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.text) == ("OutOfDeviceMemory", "no room left")
    tell(parent, "abort", "r1")
    executor.fails_at = None
    tell(parent, command, *([None, None] if command == "reconfigure" else []), number=9)
    answer = parent.recv()
    assert isinstance(answer, Answer)
    assert answer.number == 9
    assert not isinstance(answer.value, Failure)
    add(parent, 2, max_tokens=1)
    assert [ticket for ticket, *_ in parent.recv().events] == [2]


def test_a_command_that_fails_is_answered_and_leaves_all_as_it_was(parent: Connection) -> None:
    tell(parent, "reconfigure", None, CacheConfig(gpu_memory_utilization=0.0001), number=5)
    answer = parent.recv()
    assert (answer.number, answer.value.kind) == (5, "KVCacheTooSmall")
    tell(parent, "sizes", number=6)
    assert parent.recv().value.num_blocks == 40


def test_a_request_that_is_shed_is_told_with_reason_and_time(
    parent: Connection, replica: Replica, executor: FailingExecutor
) -> None:
    tell(parent, "reconfigure", SchedulerConfig(max_num_seqs=1, max_queue_len=1), None, number=1)
    assert parent.recv().number == 1
    executor.gate.clear()
    add(parent, 0)
    assert executor.has_begun.wait(60)
    for ticket in (1, 2, 3):  # all while the first step runs: one that waits, and two too many
        add(parent, ticket)
    tell(parent, "sizes", number=2)
    deadline_s = time.monotonic() + 60
    while replica._commands.qsize() < 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    before_ns = time.monotonic_ns()
    executor.gate.set()
    step, *shed, answer = (parent.recv() for _ in range(4))
    assert isinstance(step, StepNews)
    assert [(news.ticket, news.limit) for news in shed] == [(2, "max_queue_len"), (3, "max_queue_len")]
    assert all(isinstance(news, ShedNews) and news.time_ns >= before_ns for news in shed)
    assert str(shed[0].error()) == "r2 was turned away: 1 requests wait already, max_queue_len=1"
    assert answer.number == 2


def test_a_replica_hears_while_its_batch_grows(parent: Connection) -> None:
    scheduler = SchedulerConfig(batching="dynamic", max_queue_delay=3600.0, preferred_batch_size=3)
    tell(parent, "reconfigure", scheduler, None, number=1)
    assert parent.recv().number == 1
    for ticket in (0, 1):
        add(parent, ticket)
    tell(parent, "sizes", number=2)
    assert parent.recv().number == 2
    add(parent, 2)
    assert [ticket for ticket, *_ in parent.recv().events] == [0, 1, 2]


@pytest.fixture
def overlapping(connection: tuple[Connection, Connection]) -> Replica:
    """One seat, one step ahead of its device, and little patience for who waits. Runs as it is told to."""
    scheduler = SchedulerConfig(max_num_seqs=1, queue_timeout=1.5 * STEP_NS / 1e9)
    return Replica(
        0, Engine(LateExecutor(overlaps=True), scheduler, CacheConfig(num_gpu_blocks_override=9)), connection[1]
    )


def add_short(replica: Replica, ticket: int, name: str, max_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    replica.add_request(ticket, NewRequest.of(Request(name, [1, 2, 3], sampling)))


@pytest.mark.parametrize("is_used_again", [False, True])
def test_a_request_may_be_aborted_between_its_timeout_and_the_word_of_it(
    overlapping: Replica, connection: tuple[Connection, Connection], is_used_again: bool
) -> None:
    add_short(overlapping, 0, "runs", 40)
    add_short(overlapping, 1, "waits", 40)

    def step() -> StepNews:
        assert overlapping._step()
        news = connection[0].recv()
        assert isinstance(news, StepNews), news
        return news

    news = step()
    while not any(change.finish_reason for change in news.changes):
        news = step()
    assert [change.ticket for change in news.changes] == [1]
    assert all(ticket != 1 for ticket, *_ in news.events)
    overlapping.abort("waits")
    overlapping.abort("runs")
    if is_used_again:
        add_short(overlapping, 2, "waits", 2)
    told = []
    while overlapping._engine.has_work:
        told += [(ticket, len(tokens), why) for ticket, tokens, _, why in step().events]
    assert told == ([(2, 1, None), (2, 1, FinishReason.LENGTH)] if is_used_again else [])


def test_whoever_looks_later_has_the_same_share_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = psutil.Process().memory_full_info().uss
    memory = psutil.virtual_memory()
    monkeypatch.setattr(device_module, "_share_bytes", None)
    monkeypatch.setattr(device_module, "_lines", lambda path: [])
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=8 << 30))
    device_module.share_host(taken + (4 << 30))
    first = device_module.available_host_bytes()
    assert first == pytest.approx(4 << 30, rel=0.1)
    # Another one has taken its own meanwhile.
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=5 << 30))
    assert device_module.available_host_bytes() == pytest.approx(first, rel=0.1)
    # What is not there cannot be taken.
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=1 << 30))
    assert device_module.available_host_bytes() == 1 << 30
