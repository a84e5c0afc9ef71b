"""llama.cpp's server in float32 (keys and values in float16, its default), built from the source that a wheel ships."""

import json
import os
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.errors import UserError
from scripts.peers.environment import environment, peers_folder, run
from scripts.peers.process import PeerProcess
from scripts.peers.workload import Job

_SOURCE = "llama-cpp-python==0.3.36"
_TOOLS = [["scikit-build-core==0.11.6", "cmake==4.4.4", "ninja==1.13.2"]]
_OPTIONS = ("-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DBUILD_SHARED_LIBS=OFF")
SLOTS = 16
_TOKENS_PER_SLOT = 512
_START_TIMEOUT_S = 120
_ANSWER_TIMEOUT_S = 1800


class LlamaPeer:
    """A running server and its clients.

    Args:
        gguf: the model's file, of whatever type; its weights are turned into float32.
        threads: of the server.

    Raises:
        UserError: it cannot be built or started.
    """

    def __init__(self, gguf: Path, threads: int) -> None:
        binaries = _build()
        model = peers_folder() / "models" / f"{gguf.stem}-float32.gguf"
        if not model.is_file():
            model.parent.mkdir(parents=True, exist_ok=True)
            quantize = [str(binaries / "llama-quantize"), "--allow-requantize", str(gguf), str(model), "F32"]
            run(quantize, "turning the weights into float32")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        command = [
            str(binaries / "llama-server"),
            "-m",
            str(model),
            "--port",
            str(port),
            "-np",
            str(SLOTS),
            "--no-webui",
        ]
        command += ["-c", str(SLOTS * _TOKENS_PER_SLOT), "-t", str(threads), "-tb", str(threads)]
        self._process = PeerProcess([*command, "--log-disable"], dict(os.environ), subprocess.DEVNULL)
        self._wait_until_ready()
        self._process.pause()

    def run(self, jobs: list[Job]) -> None:
        """Send all jobs at once and wait for all answers.

        Raises:
            UserError: an answer of another length than was asked for.
        """
        self._process.resume()
        with ThreadPoolExecutor(len(jobs)) as clients:
            lengths = list(clients.map(self._answer_length, jobs))
        self._process.pause()
        if lengths != [job.output_tokens for job in jobs]:
            raise UserError(f"llama-server answered {sum(lengths)} tokens, not those that were asked for")

    def close(self) -> None:
        """End the server."""
        self._process.close()

    def _answer_length(self, job: Job) -> int:
        request = {"prompt": job.prompt, "n_predict": job.output_tokens, "ignore_eos": True, "temperature": 0}
        return int(self._post("/completion", request | {"cache_prompt": False})["tokens_predicted"])

    def _post(self, path: str, content: dict[str, object]) -> Any:
        request = urllib.request.Request(
            self._url + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_ANSWER_TIMEOUT_S) as answer:
            return json.load(answer)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.pipes.poll() is None:
            try:
                urllib.request.urlopen(f"{self._url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        self.close()
        raise UserError("llama-server did not start")


def _build() -> Path:
    """The folder of the programs, built once (six minutes of two cores)."""
    folder = peers_folder() / "llama"
    binaries = folder / "build" / "bin"
    if (binaries / "llama-server").is_file():
        return binaries
    python = environment("llama-build", _TOOLS)
    with tempfile.TemporaryDirectory() as download:
        fetch = [str(python), "-m", "pip", "download", "-qq", "--no-deps", "--no-binary", ":all:"]
        run([*fetch, "--no-build-isolation", "-d", download, _SOURCE], "fetching llama.cpp")
        with tarfile.open(next(Path(download).glob("*.tar.gz"))) as archive:
            archive.extractall(folder / "source", filter="data")
    source = next((folder / "source").glob("*/vendor/llama.cpp"))
    cmake = str(python.with_name("cmake"))
    print("building llama.cpp (once, some minutes) ...", flush=True)
    configure = [cmake, "-S", str(source), "-B", str(folder / "build"), "-DCMAKE_BUILD_TYPE=Release", *_OPTIONS]
    run(configure, "configuring llama.cpp")
    build = [cmake, "--build", str(folder / "build"), "--target", "llama-server", "llama-quantize"]
    run([*build, "-j", str(os.cpu_count())], "building llama.cpp")
    return binaries
