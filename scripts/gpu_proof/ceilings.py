"""Part 2: what the card can do at best, by torch's own copy and matrix product. Other parts measure it again, too."""

from dataclasses import asdict

import torch

from engine.executor.device import resolve_device, resolve_dtype
from scripts.gpu_proof.notes import Notes
from scripts.gpu_proof.sizes import Sizes
from scripts.gpu_proof.timing import Spread, seconds_per_call


def measure(sizes: Sizes, notes: Notes) -> None:
    """Copies and matrix products of several sizes; the best of each is the ceiling."""
    notes.set(
        copy_counts="bytes read and bytes written",
        product_counts="2 x rows x columns x inner length, random numbers, kept up for as long as a prefill",
    )
    copy_ceiling(sizes, notes)
    product_ceiling(sizes, notes)


def copy_ceiling(sizes: Sizes, notes: Notes) -> None:
    """Notes `copy_gb_per_s`, the best median of all buffer sizes that the card has memory for."""
    device = resolve_device(sizes.device)
    best = 0.0
    for num_bytes in sizes.copy_bytes:
        try:
            taken = _copy_s(num_bytes, device, sizes)
        except torch.OutOfMemoryError:
            continue
        gb_per_s = taken.rate(2 * num_bytes / 1e9)
        best = max(best, gb_per_s.median)
        notes.add(
            f"copy of {num_bytes >> 20} MiB", f"{gb_per_s.median:.0f} GB/s", bytes=num_bytes, gb_per_s=asdict(gb_per_s)
        )
    notes.set(copy_gb_per_s=best)


def product_ceiling(sizes: Sizes, notes: Notes) -> None:
    """Notes `product_tflops`, the best median of all shapes."""
    device = resolve_device(sizes.device)
    dtype = resolve_dtype(sizes.dtype, device, "bfloat16")
    best = 0.0
    for rows, columns, inner in sizes.products:
        a = torch.randn(rows, inner, device=device).to(dtype)
        b = torch.randn(columns, inner, device=device).to(dtype)
        out = torch.empty(rows, columns, device=device, dtype=dtype)

        def multiply(a: torch.Tensor = a, b: torch.Tensor = b, out: torch.Tensor = out) -> None:
            torch.mm(a, b.t(), out=out)

        taken = seconds_per_call(multiply, device, seconds=sizes.seconds, repeats=sizes.repeats)
        tflops = taken.rate(2 * rows * columns * inner / 1e12)
        best = max(best, tflops.median)
        notes.add(
            f"product {rows} x {columns} x {inner}",
            f"{tflops.median:.4g} TFLOP/s",
            shape=[rows, columns, inner],
            tflops=asdict(tflops),
        )
    notes.set(product_tflops=best)


def _copy_s(num_bytes: int, device: torch.device, sizes: Sizes) -> Spread:
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return seconds_per_call(lambda: target.copy_(source), device, seconds=sizes.seconds, repeats=sizes.repeats)
