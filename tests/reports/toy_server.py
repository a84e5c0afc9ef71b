"""A toy server that makes the traces of the reports' tests: latencies, seats, KV use and histories belong together.

It knows seats, a token budget, KV blocks, priorities, static batches, a bounded queue and both kinds of preemption, at
a linear step time. It is much simpler than the engine and has nothing in common with it.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from engine.request import RequestEvent
from engine.trace import IterationRecord
from workloads.metrics import Window
from workloads.records import RequestRecord, Status

BLOCK_BYTES = 1 << 20
Served = tuple[list[RequestRecord], list[IterationRecord], Window]


@dataclass
class ToyRequest:
    index: int
    t_sched: int
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    class_name: str = "all"
    computed: int = 0
    output: int = 0
    t_admit: int | None = None
    t_end: int = 0
    status: Status = "ok"
    preemptions: int = 0
    swaps: int = 0
    recomputed: int = 0
    most_computed: int = 0
    swapped: bool = False
    times: list[int] = field(default_factory=list)
    history: list[RequestEvent] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"r{self.index}"

    @property
    def known(self) -> int:
        return self.prompt_tokens + self.output

    @property
    def blocks(self) -> int:
        return -(-(self.known + 1) // 16)

    def note(self, now: int, kind: str, tokens: int, detail: str = "") -> None:
        self.history.append(RequestEvent(now, kind, tokens, self.blocks if kind != "queued" else 0, detail))


class ToyServer:
    """Serves `coming` to the end; `requests` and `steps` are what there is to see."""

    def __init__(self, settings: dict[str, Any], coming: list[ToyRequest], num_blocks: int) -> None:
        self.settings, self.coming, self.num_blocks = settings, coming, num_blocks
        self.waiting: list[ToyRequest] = []
        self.running: list[ToyRequest] = []
        self.steps: list[IterationRecord] = []
        self.now = 0

    @property
    def held(self) -> int:
        return sum(r.blocks for r in self.running)

    def serve(self) -> None:
        while self.coming or self.waiting or self.running:
            self._arrive()
            if self.waiting or self.running:
                self._step()
            elif self.coming:
                self.now = self.coming[0].t_sched

    def _arrive(self) -> None:
        while self.coming and self.coming[0].t_sched <= self.now:
            request = self.coming.pop(0)
            if 0 < self.settings["max_queue_len"] <= len(self.waiting):
                request.status, request.t_end = "shed", self.now
                continue
            request.note(self.now, "queued", request.prompt_tokens)
            self.waiting.append(request)
        timeout_ns = self.settings["queue_timeout"] * 1e9
        for request in [r for r in self.waiting if timeout_ns and r.t_admit is None]:
            if self.now - request.t_sched > timeout_ns:
                self.waiting.remove(request)
                request.status, request.t_end = "queue_timeout", self.now
        if self.settings["policy"] == "priority":
            self.waiting.sort(key=lambda r: (r.priority, r.t_sched))

    def _preempt(self) -> list[ToyRequest]:
        """Takes out the last ones admitted until the others fit."""
        victims = []
        while len(self.running) > 1 and self.held > self.num_blocks:
            victim = self.running.pop()
            swap = self.settings["preemption_mode"] == "swap"
            winner = self.running[0].name
            victim.note(self.now, "preempted", victim.computed, f"{'swap' if swap else 'recompute'}:{winner}")
            victim.preemptions, victim.swaps, victim.swapped = victim.preemptions + 1, victim.swaps + swap, swap
            victim.computed *= swap
            self.waiting.insert(0, victim)
            victims.append(victim)
        return victims

    def _step(self) -> None:
        budget = self.settings["max_num_batched_tokens"]
        chunk = self.settings["chunk_size"]
        victims = self._preempt()
        swapped_out = sum(v.blocks for v in victims if v.swapped)
        shares = []
        for request in self.running:
            want = request.known - request.computed
            if tokens := min(want, budget, chunk or want):
                shares.append((request, tokens))
                budget -= tokens
        cause, blocked, swapped_in = ("blocks" if victims else None), None, 0
        closed = self.settings["batching"] == "static" and bool(self.running)
        while self.waiting and not victims:
            request = self.waiting[0]
            no_room = self.held + request.blocks > self.num_blocks
            full = len(self.running) >= self.settings["max_num_seqs"]
            cause = (
                "batch" if closed else "seats" if full else "budget" if not budget else "blocks" if no_room else None
            )
            if cause:
                break
            self.running.append(self.waiting.pop(0))
            request.t_admit = self.now if request.t_admit is None else request.t_admit
            request.note(self.now, "admitted", request.computed, "swap" if request.swapped else "")
            swapped_in += request.blocks * request.swapped
            request.swapped = False
            want = request.known - request.computed
            tokens = min(want, budget, chunk or want)
            shares.append((request, tokens))
            budget -= tokens
        if cause == "blocks":
            blocked = self.waiting[0].name
        self._compute(shares, cause if self.waiting else None, blocked, victims, swapped_out, swapped_in)

    def _compute(
        self,
        shares: list[tuple[ToyRequest, int]],
        cause: str | None,
        blocked: str | None,
        victims: list[ToyRequest],
        swapped_out: int,
        swapped_in: int,
    ) -> None:
        prefill = [(r, n) for r, n in shares if r.computed < r.known - 1]
        again = {r.index: max(0, min(r.computed + n, r.most_computed) - r.computed) for r, n in shares}
        prefill_tokens = sum(n for _, n in prefill)
        decode_tokens = sum(n for _, n in shares) - prefill_tokens
        execute = int(4e6 + prefill_tokens * 60e3 + decode_tokens * 400e3 + (swapped_out + swapped_in) * 20e3)
        end = self.now + execute + 400_000
        self.steps.append(
            IterationRecord(
                iteration=len(self.steps),
                t_start=self.now,
                t_end=end,
                prefill_tokens=prefill_tokens,
                decode_tokens=decode_tokens,
                prefill_seqs=len(prefill),
                decode_seqs=len(shares) - len(prefill),
                context_tokens=sum(r.computed + n for r, n in shares),
                attended_tokens=sum(n * r.computed + n * (n + 1) // 2 for r, n in shares),
                cached_tokens=0,
                running=len(self.running),
                waiting=len(self.waiting),
                kv_blocks_used=min(self.num_blocks, self.held),
                kv_blocks_total=self.num_blocks,
                preemptions_recompute=sum(not v.swapped for v in victims),
                preemptions_swap=sum(v.swapped for v in victims),
                swapped_in_blocks=swapped_in,
                swapped_out_blocks=swapped_out,
                swapped_in_bytes=swapped_in * BLOCK_BYTES,
                swapped_out_bytes=swapped_out * BLOCK_BYTES,
                recomputed_tokens=sum(again.values()),
                schedule_time_ns=400_000,
                execute_time_ns=execute,
                device_time_ns=execute,
                gap_ns=0 if not self.steps else self.now - self.steps[-1].t_end,
                wait_cause=cause,
                blocked_request=blocked,
            )
        )
        for request, tokens in shares:
            if request.computed < request.known - 1 or not request.output:
                request.note(self.now, "chunk", tokens)
            request.computed += tokens
            request.recomputed += again[request.index]
            request.most_computed = max(request.most_computed, request.computed)
            if request.computed == request.known:
                request.output += 1
                request.times.append(end)
            if request.output == request.max_tokens:
                request.note(end, "finished", request.output, "length")
                request.t_end = end
        self.running = [r for r in self.running if r.output < r.max_tokens]
        self.now = end


@cache
def serve(
    setting_items: tuple[tuple[str, Any], ...],
    rate: float,
    seed: int,
    classes: bool = False,
    window_s: float = 12.0,
    num_blocks: int = 420,
) -> Served:
    """Poisson arrivals through the toy server. 2 s of warm-up, then the window; drains afterwards.

    Args:
        classes: nine in ten requests are short and of class `interactive`, the others long and of class `batch`.
    """
    rng = np.random.RandomState(seed)
    window = Window(2_000_000_000, int((2 + window_s) * 1e9))
    arrivals = np.cumsum(rng.exponential(1 / rate, size=int(rate * (window_s + 2) * 2) + 8)) * 1e9
    requests = []
    for i, t in enumerate(arrivals):
        if t >= window.end_ns:
            continue
        request = ToyRequest(i, int(t), int(rng.randint(100, 600)), int(rng.randint(40, 240)))
        if classes:
            request.class_name, request.priority = ("batch", 1) if i % 10 == 9 else ("interactive", 0)
            request.prompt_tokens = request.prompt_tokens * 4 if i % 10 == 9 else request.prompt_tokens // 4
        requests.append(request)
    server = ToyServer(dict(setting_items), list(requests), num_blocks)
    server.serve()
    return [_record(r, window) for r in requests], server.steps, window


def _record(request: ToyRequest, window: Window) -> RequestRecord:
    answered = bool(request.times)
    return RequestRecord(
        index=request.index,
        request_id=request.name,
        phase="window" if window.start_ns <= request.t_sched < window.end_ns else "warmup",
        status=request.status,
        finish_reason="length" if answered else None,
        error=None if answered else "too many wait already",
        t_sched=request.t_sched,
        t_send=request.t_sched,
        t_admit=request.t_admit,
        t_first=request.times[0] if answered else None,
        t_last=request.times[-1] if answered else None,
        t_end=request.t_end,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        output_tokens=request.output,
        first_chunk_tokens=int(answered),
        cached_tokens=0,
        preemptions=request.preemptions,
        recomputed_tokens=request.recomputed,
        preemptions_swap=request.swaps,
        priority=request.priority,
        class_name=request.class_name,
        chunk_times=tuple(request.times),
        chunk_tokens=(1,) * len(request.times),
        history=tuple(request.history),
    )
