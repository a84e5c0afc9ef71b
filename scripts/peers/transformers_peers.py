"""transformers' two ways of serving: `generate` on static batches, and continuous batching."""

from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from engine.errors import UserError
from engine.model.resolve import ModelSource
from engine.model.weights import load_weights
from scripts.peers.workload import OUTPUT_TOKENS, Job

STATIC_BATCH = 16


class StaticPeer:
    """`generate` on left-padded batches in order of arrival; each runs to its longest answer."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._model = model

    def run(self, jobs: list[Job]) -> None:
        """Run the jobs to their end."""
        for begin in range(0, len(jobs), STATIC_BATCH):
            batch = jobs[begin : begin + STATIC_BATCH]
            width = max(len(job.prompt) for job in batch)
            ids = torch.tensor([[0] * (width - len(job.prompt)) + job.prompt for job in batch])
            mask = torch.tensor([[0] * (width - len(job.prompt)) + [1] * len(job.prompt) for job in batch])
            longest = max(job.output_tokens for job in batch)
            output: Any = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, pad_token_id=0
            )
            assert output.shape[1] == width + longest

    def close(self) -> None:
        """Nothing to end."""


class ContinuousPeer:
    """Continuous batching. Its cache is sized for the workload, because by itself it asks a GPU."""

    def __init__(self, model: LlamaForCausalLM, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self._model = model
        self._config = ContinuousBatchingConfig(
            page_size=32,
            num_blocks=max_num_seqs * 16,
            max_batch_tokens=max_num_batched_tokens,
            allow_block_sharing=False,
        )

    def run(self, jobs: list[Job]) -> None:
        """Run the jobs to their end.

        Raises:
            UserError: an answer failed or has another length than was asked for.
        """
        generation = GenerationConfig(max_new_tokens=OUTPUT_TOKENS[1], do_sample=False, eos_token_id=-1, pad_token_id=0)
        lengths: dict[str, int] = {}
        with self._model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=self._config
        ) as manager:
            for number, job in enumerate(jobs):
                manager.add_request(job.prompt, request_id=str(number), max_new_tokens=job.output_tokens)
            for result in manager:
                if result.error is not None:
                    raise UserError(f"transformers' continuous batching failed: {result.error}")
                if result.is_finished():
                    lengths[result.request_id] = len(result.generated_tokens)
                if len(lengths) == len(jobs):
                    break
        if lengths != {str(number): job.output_tokens for number, job in enumerate(jobs)}:
            raise UserError(f"transformers' continuous batching answered {len(lengths)} of {len(jobs)} requests")

    def close(self) -> None:
        """Nothing to end."""


def transformers_model(source: ModelSource, seed: int) -> LlamaForCausalLM:
    """The same weights in transformers' model.

    Raises:
        UserError: another family than plain Llama.
    """
    arch = source.arch
    if arch.family != "llama" or arch.rope_scaling is not None:
        raise UserError(f"model {source.name!r} is not possible here: the comparison takes plain Llama models")
    config = LlamaConfig(
        vocab_size=arch.vocab_size,
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        num_hidden_layers=arch.num_layers,
        num_attention_heads=arch.num_heads,
        num_key_value_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        max_position_embeddings=arch.max_position_embeddings,
        rms_norm_eps=arch.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": arch.rope_theta},
        tie_word_embeddings=arch.tie_word_embeddings,
    )
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config).eval()
    weights = dict(load_weights(source, dtype=torch.float32, device="cpu", seed=seed))
    missing = set(model.load_state_dict(weights, strict=False).missing_keys)
    assert missing <= {"lm_head.weight"}
    model.generation_config.eos_token_id = None
    return model
