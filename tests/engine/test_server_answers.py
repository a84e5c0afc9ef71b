"""What the server answers: tokens, text, streams, usage, and refusals of what it cannot do."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine.server_harness import (
    Client,
    EchoExecutor,
    byte_level_folder,
    make_engine,
    serving,
    streamed,
)

POEM = "Grüß Köln 日本語 🙂🙃 "


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    source = byte_level_folder(tmp_path_factory.mktemp("echo"))
    with serving(make_engine(EchoExecutor()), source) as client:
        yield client


@pytest.fixture(scope="module")
def wordless() -> Iterator[Client]:
    """A model without a tokenizer."""
    with serving(make_engine(EchoExecutor())) as client:
        yield client


def choice(body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return next(c for c in body["choices"] if c["index"] == index)


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_a_completion_has_text_reason_and_usage(client: Client) -> None:
    body = client.complete("abcd", max_tokens=6).json()
    assert (body["object"], body["model"]) == ("text_completion", "echo")
    assert body["choices"] == [{"index": 0, "text": "abcdab", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 6,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_usage_counts_prefix_cache_hits(client: Client) -> None:
    prompt = "a prompt that comes twice"
    cached = [client.complete(prompt).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 24]


@pytest.mark.parametrize("max_tokens", [None, 1, 7])
def test_max_tokens_holds_and_is_16_unless_given(client: Client, max_tokens: int | None) -> None:
    body = client.complete("x", max_tokens=max_tokens).json()
    assert body["usage"]["completion_tokens"] == (max_tokens or 16)


@pytest.mark.parametrize("max_tokens", range(1, len(POEM.encode()) + 2))
def test_no_text_ends_in_half_a_character_streamed_or_not(client: Client, max_tokens: int) -> None:
    whole = (POEM * 2).encode()[:max_tokens].decode(errors="ignore")
    assert choice(client.complete(POEM, max_tokens=max_tokens).json())["text"] == whole
    assert joined(streamed(client.complete(POEM, max_tokens=max_tokens, stream=True))) == whole


def test_a_stream_has_one_id_a_chunk_per_token_and_a_reason_at_its_end(client: Client) -> None:
    response = client.complete("abcd", max_tokens=5, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = streamed(response)
    assert [choice(c)["text"] for c in chunks] == list("abcda")
    assert [choice(c)["finish_reason"] for c in chunks] == [None] * 4 + ["length"]
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)


def test_a_stream_ends_with_its_usage_if_asked(client: Client) -> None:
    *chunks, last = streamed(client.complete("abc", stream=True, stream_options={"include_usage": True}))
    assert all(c["usage"] is None for c in chunks)
    assert last["choices"] == []
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 16)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("d", "abc"),
        ("cda", "ab"),
        (["zz", "da"], "abc"),
        (["cdx", "bcda"], "a"),
        ("never", "abcdabcdab"),
    ],
)
def test_a_stop_string_ends_the_answer_and_is_not_sent(client: Client, stop: Any, text: str) -> None:
    reason = "length" if stop == "never" else "stop"
    for stream in (False, True):
        response = client.complete("abcd", max_tokens=10, stop=stop, stream=stream)
        if stream:
            chunks = streamed(response)
            assert joined(chunks) == text
            assert choice(chunks[-1])["finish_reason"] == reason
        else:
            assert (choice(response.json())["text"], choice(response.json())["finish_reason"]) == (text, reason)


def test_stop_tokens_end_of_sequence_and_ignore_eos(client: Client) -> None:
    ended = client.complete([7, 500, 8], return_token_ids=True).json()
    assert (choice(ended)["token_ids"], choice(ended)["finish_reason"]) == ([7, 500], "stop")
    going_on = client.complete([7, 500, 8], max_tokens=4, ignore_eos=True, return_token_ids=True).json()
    assert choice(going_on)["token_ids"] == [7, 500, 8, 7]
    stopped = client.complete([7, 9, 8], stop_token_ids=[8], return_token_ids=True).json()
    assert choice(stopped)["token_ids"] == [7, 9, 8]


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_are_several_choices(client: Client, stream: bool) -> None:
    response = client.complete(["ab", "xyz"], max_tokens=4, stream=stream, stream_options={"include_usage": True})
    if stream:
        chunks = streamed(response)
        texts, usage = [joined(chunks, 0), joined(chunks, 1)], chunks[-1]["usage"]
    else:
        texts, usage = [choice(response.json(), i)["text"] for i in (0, 1)], response.json()["usage"]
    assert texts == ["abab", "xyzx"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 8)


def test_concurrent_requests_get_their_own_tokens(client: Client) -> None:
    prompts = [f"request {number}, " for number in range(24)]
    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(lambda p: choice(client.complete(p, max_tokens=40).json())["text"], prompts))
    assert texts == [(prompt * 4)[:40] for prompt in prompts]


def test_chat_goes_through_the_models_template(client: Client) -> None:
    messages = [
        {"role": "system", "content": "kurz"},
        {"role": "user", "content": [{"type": "text", "text": "ja"}, {"type": "text", "text": "!"}]},
    ]
    body = {"messages": messages, "max_completion_tokens": 22, "chat_template_kwargs": {"shout": True}}
    answer = client.http.post("/v1/chat/completions", json=body).json()
    text = "<system>kurz<user>ja!!"
    assert answer["object"] == "chat.completion"
    assert choice(answer)["message"] == {"role": "assistant", "content": text}
    chunks = streamed(client.http.post("/v1/chat/completions", json=body | {"stream": True}))
    deltas = [choice(c)["delta"] for c in chunks]
    assert "".join(d["content"] for d in deltas) == text
    assert [d.get("role") for d in deltas] == ["assistant"] + [None] * 21


def test_a_chat_may_fill_the_context_unless_limited(client: Client) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    usage = client.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["total_tokens"] == 256


def test_models_lists_the_one_that_is_served(client: Client) -> None:
    (model,) = client.http.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"]) == ("echo", 256)


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_tokenizer_tokens_go_in_and_come_out(wordless: Client, stream: bool) -> None:
    told, where = wordless.server.said
    assert told == "echo has no tokenizer: prompts must be token ids"
    assert where == f"serving echo on echo: {str(wordless.http.base_url).rstrip('/')}/v1"
    response = wordless.complete([5, 6, 7], max_tokens=4, return_token_ids=True, stream=stream)
    if stream:
        assert [choice(c)["token_ids"] for c in streamed(response)] == [[5], [6], [7], [5]]
    else:
        found = choice(response.json())
        assert (found["text"], found["token_ids"], found["prompt_token_ids"]) == ("", [5, 6, 7, 5], [5, 6, 7])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt: Field required"),
        ({"prompt": ""}, "at least one prompt token"),
        ({"prompt": []}, "prompt: it is a text, a list of token ids, or a list of either"),
        ({"prompt": [1, True]}, "prompt: it is a text, a list of token ids"),
        ({"prompt": [512]}, "outside the vocabulary, 0 to 511"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens=0 is not possible"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens: Input should be a valid integer"),
        ({"prompt": "x", "max_tokens": 1000}, "1 prompt tokens and max_tokens=1000 exceed max_model_len=256"),
        ({"prompt": "x", "temperature": -1}, "temperature=-1.0 is not possible"),
        ({"prompt": "x", "top_p": 0}, "top_p=0.0 is not possible"),
        ({"prompt": "x", "top_k": -2}, "top_k=-2 is not possible"),
        ({"prompt": "x", "stop": ""}, "stop: an empty stop string"),
        ({"prompt": "x", "n": 2}, "n=2 is not supported: leave it out, or give 1"),
        ({"prompt": "x", "logprobs": 5}, "logprobs=5 is not supported"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(client: Client, body: dict[str, Any], message: str) -> None:
    response = client.http.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"prompt": "a\\ud800", "max_tokens": 1}', "half of a surrogate pair"),
        (b'{"prompt": "' + b"a " * 10_000 + b'", "max_tokens": 1}', "a prompt of 20,000 characters cannot fit into"),
    ],
    ids=["no text", "far too long"],
)
def test_what_no_tokenizer_should_be_given_is_refused_before_it_is(client: Client, body: bytes, message: str) -> None:
    response = client.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_what_is_no_json_no_path_or_no_model_is_refused(client: Client) -> None:
    broken = client.http.post("/v1/completions", content="{", headers={"content-type": "application/json"})
    assert broken.status_code == 400
    assert "the body is no JSON" in broken.json()["error"]["message"]
    assert client.http.get("/v1/nowhere").json()["error"]["message"] == "Not Found"
    other = client.complete("x", model="gpt-4")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert client.complete("x", model="echo").status_code == 200


@pytest.mark.parametrize("body", [{"prompt": "text"}, {"prompt": [1], "stop": "x"}])
def test_text_without_a_tokenizer_is_refused(wordless: Client, body: dict[str, Any]) -> None:
    response = wordless.http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert "echo has no tokenizer" in response.json()["error"]["message"]
    chat = wordless.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert chat.status_code == 400


def test_a_model_that_does_not_chat_says_so(tmp_path: Path) -> None:
    source = byte_level_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    with serving(make_engine(EchoExecutor()), source) as client:
        chat = client.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert "no chat template: use /v1/completions" in chat.json()["error"]["message"]
