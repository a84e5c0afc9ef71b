"""The peers by name. A new one is one file and one entry here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from engine.errors import UserError
from engine.model.resolve import ModelSource
from scripts.peers.environment import hugging_face_folder
from scripts.peers.workload import Job


class Peer(Protocol):
    """Something that can be given the whole workload, again and again."""

    def run(self, jobs: list[Job]) -> None:
        """Run the first `len(jobs)` jobs of the workload, all submitted at once, to their end."""
        ...

    def close(self) -> None:
        """End what it has started."""
        ...


@dataclass(frozen=True)
class Setting:
    """What all peers are made from.

    Attributes:
        source, seed: the model.
        jobs: the workload.
        threads, max_num_seqs, max_num_batched_tokens: for those that take them; the others have their best.
    """

    source: ModelSource
    seed: int
    jobs: list[Job]
    threads: int
    max_num_seqs: int
    max_num_batched_tokens: int

    @cached_property
    def model(self) -> Any:
        """The model in transformers."""
        from scripts.peers.transformers_peers import transformers_model

        return transformers_model(self.source, self.seed)

    @property
    def weights(self) -> Path:
        """The model as a Hugging Face folder."""
        return hugging_face_folder(self.model, self.source.name)


def _static(setting: Setting) -> Peer:
    from scripts.peers.transformers_peers import StaticPeer

    return StaticPeer(setting.model)


def _continuous(setting: Setting) -> Peer:
    from scripts.peers.transformers_peers import ContinuousPeer

    return ContinuousPeer(setting.model, setting.max_num_seqs, setting.max_num_batched_tokens)


def _openvino(kv_precision: str) -> Callable[[Setting], Peer]:
    def make(setting: Setting) -> Peer:
        from scripts.peers.openvino_peer import openvino_peer

        return openvino_peer(setting.weights, setting.jobs, kv_precision, setting.threads)

    return make


def _llama(setting: Setting) -> Peer:
    from scripts.peers.llama_peer import LlamaPeer

    if setting.source.weights != "gguf" or setting.source.path is None:
        raise UserError(f"model {setting.source.name!r} is not possible with llama: it reads GGUF files")
    return LlamaPeer(setting.source.path, setting.threads)


def _vllm(setting: Setting) -> Peer:
    from scripts.peers.vllm_peer import vllm_peer

    return vllm_peer(setting.weights, setting.jobs, setting.threads)


PEERS: dict[str, dict[str, Callable[[Setting], Peer]]] = {
    "transformers": {"transformers static": _static, "transformers continuous": _continuous},
    "openvino": {"openvino": _openvino("f32"), "openvino, KV f16": _openvino("f16")},
    "llama": {"llama-server, KV f16": _llama},
    "vllm": {"vllm": _vllm},
}


def choose_peers(names: str) -> dict[str, Callable[[Setting], Peer]]:
    """The contenders that a comma-separated list of peers means, in its order; none for an empty list.

    Raises:
        UserError: a name that there is not.
    """
    chosen: dict[str, Callable[[Setting], Peer]] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in PEERS:
            raise UserError(f"peer {name!r} does not exist: choose among {', '.join(PEERS)}")
        chosen |= PEERS[name]
    return chosen
