"""What the server survives, how it stops, and what it counts."""

import httpx
import pytest

from engine.errors import OutOfDeviceMemory, UserError
from engine.server.run import listen
from tests.engine.server_harness import EchoExecutor, make_engine, serving, streamed


def held_executor() -> EchoExecutor:
    executor = EchoExecutor()
    executor.hold()
    return executor


@pytest.mark.parametrize("error", [RuntimeError("boom"), OutOfDeviceMemory("no room")], ids=str)
def test_a_step_that_fails_fails_its_requests_and_the_server_goes_on(error: Exception) -> None:
    executor = held_executor()
    with serving(make_engine(executor, max_num_seqs=1)) as client:
        running = client.begin([1])
        executor.await_step()
        executor.let_step()
        waiting = client.begin([2])
        executor.let_step()
        executor.fail = error
        executor.let_go()
        for answer in (running, waiting):
            response = answer.get()
            assert response.status_code == 500
            assert f"{type(error).__name__}: {error}" in response.json()["error"]["message"]
        assert client.http.get("/health").json() == {"status": "ok"}
        assert client.complete([3]).status_code == 200
        assert client.metric("tune_engine_failures_total") == 1


def test_a_stream_that_has_begun_ends_with_the_error() -> None:
    executor = held_executor()
    with serving(make_engine(executor)) as client:
        answer = client.begin([1], stream=True)
        executor.await_step()
        executor.let_step()
        executor.fail = RuntimeError("boom")
        executor.let_go()
        first, last = streamed(answer.get())
    assert first["choices"][0]["finish_reason"] is None
    assert "boom" in last["error"]["message"]


def test_an_engine_that_cannot_be_reset_is_told_by_health(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = EchoExecutor()
    engine = make_engine(executor)
    executor.fail = RuntimeError("boom")

    def no_reset() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine, "reset", no_reset)
    with serving(engine) as client:
        assert client.complete([1]).status_code == 500
        health, later = client.http.get("/health"), client.complete([2])
        assert (health.status_code, later.status_code) == (503, 503)
        for text in (health.json()["reason"], later.json()["error"]["message"]):
            assert "RuntimeError: boom" in text
            assert "the device is gone" in text


def test_an_engine_that_breaks_while_a_request_is_added_fails_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(EchoExecutor())

    def broken(request: object) -> None:
        raise ZeroDivisionError("a bug")

    with serving(engine) as client, monkeypatch.context() as patch:
        patch.setattr(engine, "add_request", broken)
        assert client.complete([1]).status_code == 500
        patch.undo()
        assert client.complete([1]).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("drain_s", "reason"), [(0.0, "abort"), (3600.0, "length")])
def test_requests_under_way_may_end_within_the_drain_time(drain_s: float, reason: str, stream: bool) -> None:
    executor = held_executor()
    with serving(make_engine(executor, max_num_seqs=1), drain_s=drain_s) as client:
        answers = [client.begin([1], max_tokens=20, stream=stream, return_token_ids=True)]
        executor.await_step()
        answers.append(client.begin([2], max_tokens=20, stream=stream, return_token_ids=True))
        executor.let_step()
        client.server.terminate()
        executor.let_go()
        for answer, tokens in zip(answers, (2, 0) if reason == "abort" else (20, 20), strict=True):
            found_reason, found_tokens = reason_and_tokens(answer.get(), stream)
            assert (found_reason, found_tokens) == (reason, tokens)


def reason_and_tokens(response: httpx.Response, stream: bool) -> tuple[str, int]:
    chunks = streamed(response) if stream else [response.json()]
    choices = [chunk["choices"][0] for chunk in chunks]
    return choices[-1]["finish_reason"], sum(len(choice["token_ids"]) for choice in choices)


def test_a_server_that_is_stopping_takes_no_more_requests() -> None:
    executor = held_executor()
    with serving(make_engine(executor), drain_s=3600.0) as client:
        running = client.begin([1])
        executor.await_step()
        # The server itself would close the door to this one.
        client.server._worker.stop(3600.0)
        late = client.begin([2])
        executor.let_go()
        assert running.get().status_code == 200
        assert late.get().status_code == 503
        assert late.get().json()["error"]["message"] == "the server is shutting down"
        assert client.http.get("/health").status_code == 503
        assert client.complete([3]).status_code == 503


def test_the_thread_has_ended_when_the_server_has() -> None:
    engine = make_engine(EchoExecutor())
    with serving(engine) as client:
        worker = client.server._worker
        assert client.complete([1]).status_code == 200
    assert not worker._thread.is_alive()
    assert worker.problem == "the server is shutting down"


def test_metrics_count_what_happened() -> None:
    executor = held_executor()
    executor.step_s = 2.0
    # Two requests of 20 tokens do not fit into 9 blocks of 4 together.
    with serving(make_engine(executor, blocks=9, prefix=False)) as client:
        answers = [client.begin([token] * 4, max_tokens=16) for token in (1, 2)]
        executor.await_step()
        assert client.metric("tune_num_requests_running") >= 1
        assert client.metric("tune_num_requests_waiting") <= 1
        executor.let_go()
        assert [a.get().status_code for a in answers] == [200, 200]
        assert client.metric('tune_num_preemptions_total{kind="recompute"}') >= 1
        assert client.metric('tune_num_preemptions_total{kind="swap"}') == 0
        assert client.metric('tune_swapped_blocks_total{direction="in"}') == 0
        assert client.metric("tune_recomputed_tokens_total") > 0
        assert client.metric("tune_prompt_tokens_total") == 8
        assert client.metric("tune_generation_tokens_total") == 32
        assert client.metric('tune_request_success_total{finished_reason="length"}') == 2
        assert client.metric("tune_time_to_first_token_seconds_count") == 2
        assert client.metric('tune_time_to_first_token_seconds_bucket{le="2.5"}') >= 1
        assert client.metric("tune_e2e_request_latency_seconds_count") == 2
        assert client.metric("tune_e2e_request_latency_seconds_sum") >= 2 * 16 * executor.step_s
        assert (client.metric("tune_num_requests_running"), client.metric("tune_kv_cache_usage_perc")) == (0, 0)


def test_swaps_are_counted() -> None:
    executor = EchoExecutor()
    executor.host_link_bytes_per_s = 1e9  # type: ignore[assignment]
    engine = make_engine(executor, blocks=9, prefix=False, preemption_mode="swap")
    executor.hold()
    with serving(engine) as client:
        answers = [client.begin([token] * 4, max_tokens=16) for token in (1, 2)]
        executor.let_go()
        assert [a.get().status_code for a in answers] == [200, 200]
        swaps = client.metric('tune_num_preemptions_total{kind="swap"}')
        assert swaps >= 1
        assert client.metric('tune_swapped_blocks_total{direction="out"}') >= swaps
        assert client.metric('tune_swapped_blocks_total{direction="in"}') >= swaps


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded() -> None:
    with serving(make_engine(EchoExecutor())) as client:
        port = client.http.base_url.port
        assert port is not None
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1 is taken"):
            listen("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(UserError, match="cannot listen on"):
        listen("203.0.113.7", 0)
