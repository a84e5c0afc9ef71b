"""A `.gguf` file (llama.cpp's format) as an architecture and weights under Hugging Face names."""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import UserError
from engine.model.arch import FAMILIES, SUPPORTED, Family, ModelArch, RopeScaling, yarn_attention_factor
from engine.model.checkpoint import CheckpointDtype, check_parameters

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFReader
    from numpy.typing import NDArray

# Mistral's files say `llama`: without a sliding window the two compute the same.
_ARCHITECTURES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor as it lies in the file.

    Attributes:
        name: its Hugging Face name.
        data: the file's bytes, still mapped, not loaded.
        kind: how they are encoded.
        interleaved_heads: number of heads whose rotary pairs are neighbouring rows; 0 where they are halves apart.
    """

    name: str
    data: "NDArray[Any]"
    kind: "GGMLQuantizationType"
    interleaved_heads: int


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A checked file.

    Attributes:
        arch: read from its metadata.
        checkpoint_dtype: float32 or float16 where the matrices are stored so, else bfloat16.
        tensors: one per weight.
    """

    arch: ModelArch
    checkpoint_dtype: CheckpointDtype
    tensors: tuple[GGUFTensor, ...]

    def weights(self) -> "Iterator[tuple[str, NDArray[np.float32]]]":
        """Each weight by its Hugging Face name, decoded to float32, `[out, in]`; a writable array of its own."""
        import numpy as np
        from gguf.quants import dequantize

        for tensor in self.tensors:
            values = dequantize(tensor.data, tensor.kind)
            if tensor.interleaved_heads:
                values = half_split_rotary(values, tensor.interleaved_heads)
            yield tensor.name, np.require(values, np.float32, ["C", "W"])


def half_split_rotary(weight: "NDArray[Any]", num_heads: int) -> "NDArray[Any]":
    """Reorder a projection's rows from neighbouring rotary pairs to Hugging Face's halves.

    llama.cpp's converter interleaves the rows of Llama's query and key projections, so that row `2 i + j` of a head
    is Hugging Face's row `j head_dim / 2 + i`. Shape `[heads head_dim, in]`, before and after.
    """
    pairs = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def read_gguf(path: Path, name: str) -> GGUFModel:
    """Read and check a file's metadata and tensor directory; loads no weight.

    Args:
        path: the file.
        name: the model's name, for messages and reports.

    Raises:
        UserError: the file is damaged, holds a model or an encoding that is not supported, or lacks a tensor.
    """
    stat = path.stat()
    return _read(path, name, stat.st_mtime_ns, stat.st_size)


# A model is resolved first and loaded later.
@lru_cache(maxsize=2)
def _read(path: Path, name: str, mtime_ns: int, size: int) -> GGUFModel:
    from engine.model.gguf_header import HeaderReader

    try:
        reader = HeaderReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, OSError, struct.error) as error:
        raise UserError(f"{path}: not a whole GGUF file ({error}); download it again") from error
    if metadata.get("split.count", 0) > 1:
        raise UserError(f"{path}: one of {metadata['split.count']} parts; merge them into one .gguf file first")

    arch = _arch(_Metadata(metadata, path), reader, name)
    _check_encodings(reader, path)
    tensors = []
    shapes: dict[str, tuple[int, ...]] = {}
    permuted_heads = {"q_proj": arch.num_heads, "k_proj": arch.num_kv_heads} if arch.family == "llama" else {}
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FREQS:
            continue
        hf_name = _hf_name(tensor.name)
        heads = next((heads for projection, heads in permuted_heads.items() if projection in hf_name), 0)
        shapes[hf_name] = tuple(reversed(tensor.shape.tolist()))
        tensors.append(GGUFTensor(hf_name, tensor.data, tensor.tensor_type, heads))
    check_parameters(arch, shapes, path)
    return GGUFModel(arch, _checkpoint_dtype(reader), tuple(tensors))


class _Metadata:
    """A file's metadata with the architecture's prefix put in front of each key."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values = values
        self.path = path
        self.architecture = values.get("general.architecture")

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(f"{self.architecture}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int):
            raise UserError(f"{self.path}: {self.architecture}.{key}={value!r}, where a whole number is due")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float):
            raise UserError(f"{self.path}: {self.architecture}.{key}={value!r}, where a number is due")
        # Stored in single precision: the shortest decimal that gives the same single is what was meant (1e-05).
        return float(f"{value:.7g}")


def _arch(metadata: _Metadata, reader: "GGUFReader", name: str) -> ModelArch:
    path = metadata.path
    if metadata.architecture not in _ARCHITECTURES:
        raise UserError(f"{path}: architecture {metadata.architecture!r} is not supported; {SUPPORTED}")
    if metadata.get("expert_count"):
        raise UserError(f"{path}: a mixture of experts is not supported; {SUPPORTED}")
    if metadata.get("attention.sliding_window"):
        raise UserError(f"{path}: a sliding window in a GGUF file is not supported; use the model's safetensors folder")
    family = _ARCHITECTURES[metadata.architecture]
    names = {tensor.name: tensor for tensor in reader.tensors}
    if "token_embd.weight" not in names:
        raise UserError(f"{path}: tensor token_embd.weight is missing; the file holds no whole model")

    hidden_size = metadata.whole("embedding_length")
    num_heads = metadata.whole("attention.head_count")
    head_dim = metadata.whole("attention.key_length", default=hidden_size // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.whole(key, default=head_dim) != head_dim:
            raise UserError(
                f"{path}: {key}={metadata.get(key)} is not supported: it must equal the head size {head_dim}"
            )
    max_length = metadata.whole("context_length")
    rope_theta = metadata.number("rope.freq_base", default=10000.0)
    scaling = _rope_scaling(metadata, max_length)
    if _ROPE_FREQS in names:
        scaling = _llama3_scaling(names[_ROPE_FREQS].data, rope_theta, head_dim, path)
    ids = (metadata.values.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot"))
    return ModelArch(
        name=name,
        family=family,
        hidden_size=hidden_size,
        num_layers=metadata.whole("block_count"),
        num_heads=num_heads,
        num_kv_heads=metadata.whole("attention.head_count_kv", default=num_heads),
        head_dim=head_dim,
        intermediate_size=metadata.whole("feed_forward_length"),
        vocab_size=int(names["token_embd.weight"].shape[-1]),
        max_position_embeddings=max_length,
        rms_norm_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        rope_theta=rope_theta,
        rope_scaling=scaling,
        tie_word_embeddings="output.weight" not in names,
        qkv_bias=FAMILIES[family].qkv_bias,
        qk_norm=FAMILIES[family].qk_norm,
        eos_token_ids=tuple(dict.fromkeys(int(token) for token in ids if token is not None)),
    )


def _rope_scaling(metadata: _Metadata, max_length: int) -> RopeScaling | None:
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = metadata.number("rope.scaling.factor", default=1.0)
    if kind == "linear":
        return RopeScaling("linear", factor)
    if kind == "yarn":
        return RopeScaling(
            "yarn",
            factor,
            original_max_position_embeddings=metadata.whole("rope.scaling.original_context_length", max_length),
            beta_fast=metadata.number("rope.scaling.yarn_beta_fast", default=32.0),
            beta_slow=metadata.number("rope.scaling.yarn_beta_slow", default=1.0),
            attention_factor=metadata.number("rope.scaling.attn_factor", default=1.0) * yarn_attention_factor(factor),
        )
    raise UserError(f"{metadata.path}: rope.scaling.type {kind!r} is not supported; supported are none, linear, yarn")


def _llama3_scaling(divisors: "NDArray[Any]", theta: float, head_dim: int, path: Path) -> RopeScaling:
    """Find the Llama 3.1 scaling that a file's table of frequency divisors, `[head_dim / 2]`, was made from.

    The table of every published Llama 3.1 and 3.2 comes from waves between 8192 / 4 and 8192 / 1 tokens; its largest
    divisor is the factor. A table of other origin is refused.
    """
    original = 8192
    factor = float(f"{max(divisors.tolist(), default=1.0):.6g}")
    scaling = RopeScaling("llama3", max(factor, 1.0), original_max_position_embeddings=original)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    expected = []
    for pair in range(head_dim // 2):
        turns = original * theta ** (-2 * pair / head_dim) / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        expected.append(1 / ((1 - kept) / scaling.factor + kept))
    if len(divisors) != len(expected) or not all(
        math.isclose(given, due, rel_tol=1e-4) for given, due in zip(divisors.tolist(), expected, strict=True)
    ):
        raise UserError(f"{path}: {_ROPE_FREQS} is not Llama 3.1's frequency scaling; use the safetensors folder")
    return scaling


def _hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; an unknown name stays as it is."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    _, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}" if part in _LAYER_NAMES else name


def _check_encodings(reader: "GGUFReader", path: Path) -> None:
    from gguf.quants import dequantize

    # The first row of one tensor per encoding: refused here, not after half of the model is loaded.
    for kind, tensor in {tensor.tensor_type: tensor for tensor in reader.tensors}.items():
        try:
            dequantize(tensor.data[:1], kind)
        except (NotImplementedError, ValueError) as error:
            raise UserError(f"{path}: tensor {tensor.name} is encoded as {kind.name}, which cannot be read") from error


def _checkpoint_dtype(reader: "GGUFReader") -> CheckpointDtype:
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    plain: dict[frozenset[str], CheckpointDtype] = {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}
    return plain.get(frozenset(kinds), "bfloat16")
