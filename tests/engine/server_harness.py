"""A real server on a free port over a model that repeats its prompt, whose steps wait until a test lets them go."""

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.clock import Clock, VirtualClock
from engine.config import CacheConfig, SchedulerConfig
from engine.engine import Engine
from engine.executor.base import MemoryProfile, StepResult
from engine.model.presets import preset_arch
from engine.model.resolve import ModelSource
from engine.request import Request
from engine.scheduler.plan import StepPlan
from engine.server.run import EngineServer, listen, url_of

TIMEOUT_S = 30.0  # nothing takes that long unless it hangs
ECHO = ModelSource("echo", preset_arch("tiny"), "random", None, False, None, "bfloat16")
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if shout %}!{% endif %}"


def byte_level_folder(folder: Path) -> ModelSource:
    """The echo model with a tokenizer whose tokens are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: token_id for token_id, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}), encoding="utf-8")
    return replace(ECHO, weights="safetensors", path=folder)


class EchoExecutor:
    """Answers every prompt with itself, again and again. Its clock moves by `step_s` a step, and when told."""

    device_name, simulated, max_model_len, vocab_size, eos_token_ids = "echo", False, 256, 512, (500,)
    host_link_bytes_per_s = None

    def __init__(self) -> None:
        self.virtual_clock = VirtualClock()
        self.clock: Clock = self.virtual_clock
        self.step_s = 0.0
        self.fail: Exception | None = None
        self.admitted: list[Request] = []
        self._begun = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)
        self._is_held = False

    def hold(self) -> None:
        """Let no step end from now on."""
        self._is_held = True

    def let_step(self) -> None:
        """Let one held step end, and wait until the next has begun."""
        self._gate.release()
        self.await_step()

    def let_go(self) -> None:
        """Hold no longer."""
        self._is_held = False
        self._gate.release()

    def await_step(self) -> None:
        """Wait until one more step has begun."""
        assert self._begun.acquire(timeout=TIMEOUT_S)

    def execute(self, plan: StepPlan) -> StepResult:
        self.admitted += [s.request for s in plan.scheduled if s.request not in self.admitted]
        if self._is_held:
            self._begun.release()
            assert self._gate.acquire(timeout=TIMEOUT_S)
        self.virtual_clock.advance(round(self.step_s * 1e9))
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        sampled = [s.request for s in plan.scheduled if s.samples]
        return StepResult([r.prompt_token_ids[r.num_output_tokens % r.num_prompt_tokens] for r in sampled])

    def kv_bytes_per_block(self, block_size: int) -> int:
        return block_size << 20

    def profile_memory(self, max_num_batched_tokens: int, max_num_seqs: int) -> MemoryProfile:
        return MemoryProfile(1 << 20, 0, 0, 0)

    def allocate_kv(self, num_blocks: int, block_size: int, num_swap_blocks: int = 0) -> None:
        pass

    def shutdown(self) -> None:
        pass


class Server(EngineServer):
    """Tells when it is up, and when a request or its end has been handed to the worker."""

    def __init__(self, engine: Engine, source: ModelSource, drain_s: float) -> None:
        self.said: list[str] = []
        super().__init__(engine, source, drain_s, self.said.append)
        self.engine = engine
        self.ready = threading.Event()
        self._submitted = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        worker = self._worker
        submit, end = worker.submit, worker.end

        def counted_submit(*args: Any) -> None:
            submit(*args)
            self._submitted.release()

        def counted_end(*args: Any) -> None:
            end(*args)
            self._ended.release()

        worker.submit, worker.end = counted_submit, counted_end  # type: ignore[method-assign, assignment]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def terminate(self) -> None:
        """As SIGTERM does."""
        self.handle_exit(signal.SIGTERM, None)

    def await_submitted(self) -> None:
        """Wait until one more request was handed over; the worker hears of it after the step in progress."""
        assert self._submitted.acquire(timeout=TIMEOUT_S)

    def await_ended(self) -> None:
        """Wait until one more request was ended before its time."""
        assert self._ended.acquire(timeout=TIMEOUT_S)


class Answer:
    """A call made in a thread of its own."""

    def __init__(self, client: httpx.Client, body: dict[str, Any], headers: dict[str, str]) -> None:
        self._result: list[httpx.Response] = []
        self._thread = threading.Thread(
            target=lambda: self._result.append(client.post("/v1/completions", json=body, headers=headers)), daemon=True
        )
        self._thread.start()

    def get(self) -> httpx.Response:
        self._thread.join(TIMEOUT_S)
        return self._result[0]


class Client:
    """Calls a server.

    Attributes:
        http: for calls of any other kind.
    """

    def __init__(self, server: Server, http: httpx.Client) -> None:
        self.server = server
        self.http = http

    def complete(self, prompt: Any, **body: Any) -> httpx.Response:
        """Wait for an answer."""
        return self.http.post("/v1/completions", json={"prompt": prompt, **body})

    def begin(self, prompt: Any, headers: dict[str, str] | None = None, **body: Any) -> Answer:
        """Return when the request was handed over."""
        answer = Answer(self.http, {"prompt": prompt, **body}, headers or {})
        self.server.await_submitted()
        return answer

    def metric(self, name: str) -> float:
        """A sample's value, its labels included in the name."""
        lines = self.http.get("/metrics").text.splitlines()
        return next(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name)


def make_engine(executor: Any, blocks: int = 64, prefix: bool = True, **scheduler: Any) -> Engine:
    cache = CacheConfig(block_size=4, enable_prefix_caching=prefix, num_gpu_blocks_override=blocks)
    return Engine(executor, SchedulerConfig(**scheduler), cache)


@contextmanager
def serving(engine: Engine, source: ModelSource = ECHO, drain_s: float = 0) -> Iterator[Client]:
    """A server in a thread; it has stopped when the block is left."""
    listener = listen("127.0.0.1", 0)
    server = Server(engine, source, drain_s)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    assert server.ready.wait(TIMEOUT_S)
    try:
        with httpx.Client(base_url=url_of(listener), timeout=TIMEOUT_S) as http:
            yield Client(server, http)
    finally:
        server.terminate()
        if isinstance(engine.executor, EchoExecutor):
            engine.executor.let_go()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def streamed(response: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, without the closing mark."""
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]
