"""Requests that are turned away, leave early or are hurried on: status, Retry-After, and what becomes of the engine."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from engine.clock import WallClock
from tests.engine.server_harness import TIMEOUT_S, Client, EchoExecutor, make_engine, serving, streamed

HOUR_S = 3600.0


@pytest.fixture
def executor() -> EchoExecutor:
    """The engine's, with its first step held back."""
    executor = EchoExecutor()
    executor.hold()
    return executor


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    return response.status_code, response.json()["error"]["code"], response.headers["Retry-After"]


@pytest.mark.parametrize("limits", [{"max_queue_len": 1}, {"max_queue_tokens": 4}], ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_answers_429_with_a_time_to_retry(
    executor: EchoExecutor, limits: dict[str, Any], stream: bool
) -> None:
    with serving(make_engine(executor, max_num_seqs=1, **limits)) as client:
        running = client.begin([1, 2], stream=stream)
        executor.await_step()
        waiting = client.begin([3, 4, 5], stream=stream)
        shed = client.begin([6, 7], stream=stream)
        executor.let_go()
        assert error_of(shed.get()) == (429, next(iter(limits)), "1")
        assert [a.get().status_code for a in (running, waiting)] == [200, 200]
        assert client.metric(f'tune_requests_shed_total{{limit="{next(iter(limits))}"}}') == 1


def test_a_predicted_wait_that_is_too_long_answers_503(executor: EchoExecutor) -> None:
    with serving(make_engine(executor, max_num_seqs=1, max_predicted_wait=1.0)) as client:
        executor.step_s = 100.0
        running = client.begin([1], max_tokens=8)
        executor.await_step()
        waiting = client.begin([2])
        executor.let_step()  # it waits from the second step on
        executor.let_step()
        executor.let_step()
        shed = client.begin([3])
        executor.let_go()
        status, code, retry_after = error_of(shed.get())
        assert (status, code) == (503, "max_predicted_wait")
        assert int(retry_after) >= 100
        assert [a.get().status_code for a in (running, waiting)] == [200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waits_too_long_answers_503_streamed_or_not(executor: EchoExecutor, stream: bool) -> None:
    with serving(make_engine(executor, max_num_seqs=1, queue_timeout=2.5)) as client:
        running = client.begin([1], max_tokens=8)
        executor.await_step()
        waiting = client.begin([2], stream=stream)
        executor.let_step()
        executor.virtual_clock.advance(10_000_000_000)
        executor.let_go()
        assert error_of(waiting.get()) == (503, "queue_timeout", "3")
        assert running.get().json()["choices"][0]["finish_reason"] == "length"
        assert client.metric("tune_requests_queue_timeout_total") == 1


def test_one_prompt_that_is_refused_ends_the_call_and_its_other_prompts(executor: EchoExecutor) -> None:
    with serving(make_engine(executor, max_num_seqs=1)) as client:
        refused = client.begin([[1, 2], [600]], max_tokens=250)
        executor.await_step()
        client.server.await_ended()
        executor.let_go()
        assert refused.get().status_code == 400
        assert client.complete([4]).status_code == 200
        assert executor.admitted[0].num_output_tokens < 250


def test_priority_and_the_count_of_attempts_reach_the_scheduler(executor: EchoExecutor) -> None:
    with serving(make_engine(executor, max_num_seqs=1, policy="priority")) as client:
        first = client.begin([1])
        executor.await_step()
        later = client.begin([2], priority=5)
        sooner = client.begin([3], priority=-1, headers={"x-stainless-retry-count": "2"})
        executor.let_go()
        assert [a.get().status_code for a in (first, later, sooner)] == [200] * 3
    assert [(r.prompt_token_ids, r.attempt) for r in executor.admitted] == [([1], 0), ([3], 2), ([2], 0)]


def post_and_hang_up(client: Client, body: dict[str, Any]) -> None:
    """Send a request, and close the connection once the worker has it."""
    url = urlsplit(str(client.http.base_url))
    content = json.dumps(body).encode()
    with socket.create_connection((url.hostname, url.port), timeout=TIMEOUT_S) as connection:
        head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
        head += [f"Content-Length: {len(content)}", "", ""]
        connection.sendall("\r\n".join(head).encode() + content)
        client.server.await_submitted()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["running", "waiting"])
def test_a_client_that_hangs_up_frees_what_it_held(executor: EchoExecutor, place: str, stream: bool) -> None:
    engine = make_engine(executor, max_num_seqs=1)
    with serving(engine) as client:
        others = []
        if place == "waiting":
            others.append(client.begin([1]))
            executor.await_step()
        post_and_hang_up(client, {"prompt": [2, 3], "max_tokens": 200, "stream": stream})
        client.server.await_ended()
        executor.let_go()
        others.append(client.begin([4]))
        assert [a.get().status_code for a in others] == [200] * len(others)
        given_up = [r for r in executor.admitted if r.prompt_token_ids == [2, 3]]
        assert all(r.num_output_tokens < 200 for r in given_up)
        assert not (given_up and place == "waiting")
        assert client.metric('tune_request_success_total{finished_reason="abort"}') == 1
    assert not engine.has_work
    engine.scheduler.check_integrity()
    assert engine.scheduler.kv.pool.num_used == 0


def test_a_client_that_hangs_up_in_the_middle_of_a_stream_ends_it(executor: EchoExecutor) -> None:
    engine = make_engine(executor)
    with serving(engine) as client:
        body = {"prompt": [1, 2, 3], "max_tokens": 200, "stream": True}
        executor.let_go()
        executor.hold()  # only the first step goes by
        with client.http.stream("POST", "/v1/completions", json=body) as response:
            assert next(response.iter_lines()).startswith("data: ")
        client.server.await_ended()
        executor.let_go()
        assert client.complete([4]).status_code == 200
        assert client.metric("tune_num_requests_running") == 0
    assert executor.admitted[0].num_output_tokens < 200
    assert engine.scheduler.kv.pool.num_used == 0


def test_a_growing_batch_hears_of_arrivals_while_it_waits() -> None:
    executor = EchoExecutor()
    executor.clock = WallClock()
    options: dict[str, Any] = {"batching": "dynamic", "preferred_batch_size": 2, "max_queue_delay": HOUR_S}
    with serving(make_engine(executor, **options)) as client:
        first = client.begin([1])
        second = client.begin([2])
        assert [a.get().status_code for a in (first, second)] == [200, 200]


def test_a_batch_that_need_not_grow_longer_starts_alone() -> None:
    executor = EchoExecutor()
    executor.clock = WallClock()
    with serving(make_engine(executor, batching="dynamic", max_queue_delay=0.02)) as client:
        chunks = streamed(client.complete([1], stream=True, max_tokens=2))
    assert len(chunks) == 2
