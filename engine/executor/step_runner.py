"""A step's way through the model: from shares of a plan to sampled tokens that may stay on the device."""

from collections.abc import Sequence

import torch

from engine.attention.base import AttentionBackend
from engine.attention.kv_tensors import KVTensors
from engine.executor.cuda_graphs import StepGraphs
from engine.executor.input_batch import InputBatch, build_input_batch
from engine.executor.sampler import Sampler
from engine.host_phases import HostPhases
from engine.model.decoder import Decoder
from engine.request import Request
from engine.scheduler.plan import ScheduledRequest
from engine.trace import Phase


class StepRunner:
    """Lays steps out and runs them, in the same order. Remembers what the last one sampled, for the next.

    Args:
        decoder, sampler: the model, and what chooses its tokens.
        device: where both are.
        phases: told what the host is doing.
    """

    def __init__(self, decoder: Decoder, sampler: Sampler, device: torch.device, phases: HostPhases) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._device = device
        self._phases = phases
        self._last_sampled: list[Request] = []
        self._last_tokens: torch.Tensor | None = None

    def lay_out(self, scheduled: Sequence[ScheduledRequest], block_size: int) -> InputBatch:
        """A step's input. No work of the device yet."""
        with self._phases.during(Phase.INPUT_BATCH):
            return build_input_batch(scheduled, block_size, self._last_sampled)

    def run(
        self,
        batch: InputBatch,
        attention: AttentionBackend,
        kv: KVTensors,
        *,
        graphs: StepGraphs | None = None,
        num_layers: int | None = None,
    ) -> torch.Tensor:
        """Run what was laid out last.

        Args:
            graphs: those captured over `kv`; None to launch every kernel.
            num_layers: see `Decoder.forward`.

        Returns:
            The sampled tokens, int64 `[samples]` on the device, valid until the next run.
        """
        graph = None if graphs is None else graphs.find(batch.attention)
        with self._phases.during(Phase.LAUNCH):
            if graph is not None:
                logits, tokens = graph.replay(batch, self._last_tokens)
            else:
                token_ids, positions, sample_rows = batch.to(self._device, self._last_tokens)
                step = attention.begin_step(batch.attention, kv)
                logits = self._decoder.forward(token_ids, positions, step, sample_rows, num_layers)
                tokens = None
        with self._phases.during(Phase.SAMPLING):
            if tokens is None:
                tokens = self._sampler.sample(logits, batch.sampled)
            elif self._sampler.draws(batch.sampled):
                self._sampler.draw(logits, tokens, batch.sampled)
        self._last_sampled, self._last_tokens = batch.sampled, tokens
        return tokens
