"""Run as a program: compiles the `triton` backend's kernels for a card that need not be there.

The interpreter runs the kernels' text as Python and takes much that the compiler refuses.
"""

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.attention import triton_kernels as kernels
from engine.attention.base import AttentionSpec
from engine.attention.triton_shapes import TileShape, fixed_shapes, padded, padded_dim, prefill_candidates

HOPPER = GPUTarget("cuda", 90, 32)
INTEGERS = {"slots", "items", "page_ids", "joins"}
TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float8_e4m3fn: "*fp8e4nv"}


def compile_kernel(kernel: Any, spec: AttentionSpec, constants: dict[str, Any], **options: int) -> None:
    """Compile a kernel as a launch would: pointers and strides are multiples of 16."""
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name == "scale_log2":
            signature[name] = "fp32"
        else:
            numbers = TYPES[spec.page_dtype if name.startswith("pages_") else spec.dtype]
            pointer = "*i32" if name in INTEGERS else "*fp32" if name.startswith("part_") else numbers
            signature[name] = "i32" if name.endswith("_stride") else pointer
            attributes[(index,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    triton.compile(ASTSource(kernel, signature, values, attributes), target=HOPPER, options=options)


def compile_all(spec: AttentionSpec, block_size: int, shapes: list[TileShape]) -> None:
    dims = {"HEAD_DIM": spec.head_dim, "PADDED_DIM": padded_dim(spec.head_dim)}
    pages = {"KV_HEADS": spec.num_kv_heads, "BLOCK_SIZE": block_size} | dims
    compile_kernel(kernels.join_parts, spec, {"HEADS": spec.num_heads} | dims)
    compile_kernel(kernels.write_kv, spec, pages | {"PADDED_KV_HEADS": padded(spec.num_kv_heads)})
    for shape in shapes:
        constants = pages | {
            "GROUP": spec.num_heads // spec.num_kv_heads,
            "WINDOW": spec.sliding_window or 0,
            "TILE_ROWS": shape.rows,
            "TILE_KEYS": shape.keys,
            "PRECISION": "ieee" if spec.dtype == torch.float32 else "tf32",
        }
        compile_kernel(kernels.attend_tiles, spec, constants, num_warps=shape.num_warps, num_stages=shape.num_stages)


def main() -> None:
    device = torch.device("cuda")
    qwen = AttentionSpec(28, 4, 128, None, torch.bfloat16, device)
    compile_all(qwen, 16, [fixed_shapes(qwen).decode, *list(prefill_candidates(qwen))[-1:]])
    for kept in (torch.float8_e4m3fn, torch.float16):
        narrower = AttentionSpec(28, 4, 128, None, torch.bfloat16, device, kept)
        compile_all(narrower, 16, [fixed_shapes(narrower).decode, *list(prefill_candidates(narrower))[-1:]])
    odd = AttentionSpec(6, 2, 96, 100, torch.bfloat16, device)
    compile_all(odd, 24, [fixed_shapes(odd).prefill])
    narrow = AttentionSpec(4, 4, 8, None, torch.float32, device)
    compile_all(narrow, 8, [fixed_shapes(narrow).decode])
    print("compiled")


if __name__ == "__main__":
    main()
