"""The server over the torch engine, and `tune serve` as a process."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engine.errors import UserError
from engine.executor.torch_executor import TorchExecutor
from engine.model.resolve import resolve_model
from engine.request import Request, SamplingParams
from tests.engine.server_harness import Client, make_engine, serving, streamed
from tuner.cli.serve import serve

PROMPTS = [[7, 8, 9], [100, 200], list(range(1, 40)), [5]]
SAMPLING = [{"temperature": 0.0}, {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 3}]


def load() -> TorchExecutor:
    return TorchExecutor.load(resolve_model("random:tiny"), device="cpu", max_model_len=128)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # Fewer blocks than the requests of a test need together, so some are preempted.
    with serving(make_engine(load(), blocks=34, chunk_size=7)) as client:
        yield client


def own_tokens(prompt: list[int], sampling: dict[str, Any]) -> list[int]:
    """The engine's answer without a server."""
    engine = make_engine(load())
    request = Request("a", prompt, SamplingParams(max_tokens=30, ignore_eos=True, **sampling))
    engine.add_request(request)
    while engine.has_work:
        engine.step()
    return request.output_token_ids


@pytest.mark.parametrize("sampling", SAMPLING, ids=["greedy", "seed 3"])
@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_the_engines_own_tokens(client: Client, sampling: dict[str, Any], stream: bool) -> None:
    expected = [own_tokens(prompt, sampling) for prompt in PROMPTS]
    body = {"max_tokens": 30, "ignore_eos": True, "return_token_ids": True, "stream": stream, **sampling}
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        responses = list(pool.map(lambda prompt: client.complete(prompt, **body), PROMPTS))
    for response, tokens in zip(responses, expected, strict=True):
        chunks = streamed(response) if stream else [response.json()]
        assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == tokens


def test_a_simulated_device_is_refused() -> None:
    with pytest.raises(UserError, match="--device sim:a10 cannot serve: a simulated device runs on a virtual clock"):
        serve(device="sim:a10")


def test_the_command_serves_until_it_is_terminated() -> None:
    code = "from tuner.cli.serve import serve; serve(model='random:tiny', device='cpu', port=0, device_memory='256MiB')"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        url = next(found[0] for line in process.stderr if (found := re.search(r"http://\S+/v1", line)))
        answer = httpx.post(f"{url}/completions", json={"prompt": [1, 2], "max_tokens": 3}, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        assert process.stderr.read().strip() == "stopped"
    finally:
        process.kill()
        process.wait()
