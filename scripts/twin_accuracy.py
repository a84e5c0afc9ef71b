#!/usr/bin/env python
"""What the twin's predictions are worth on this machine: predicted beside measured, for settings spread over the space.

Measures the default settings, then others drawn from the searched space by a quasi-random sequence, all at one rate on
the real engine; learns a device from the default's run alone, and again from three runs; replays every run on each; and
puts the errors beside how far the real thing repeats itself (the default measured again, at the end).

The load is short requests on a device with little memory, so that seats, token budget, chunk size and KV cache all
bind somewhere in the space.

Usage: twin_accuracy.py [--settings 12] [--rate 2] [--window 30s] [--out runs/twin] [--json FILE]
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ is None and str(Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.executor.before_torch import prepare_process

prepare_process()

from engine.build import SIMULATED_PREFIX
from engine.errors import UserError
from tuner.arguments import TuneArguments
from tuner.settings import Settings
from tuner.targets.bundled import BundledTarget
from tuner.twin.accuracy import METRICS, Predicted, accuracy, replay
from tuner.twin.fit import learn_device
from workloads.records import RunRecord, write_run

REPEATS = 3
LOAD: dict[str, Any] = {
    "slo": ["p95_ttft=1.5s,p95_tpot=150ms"],
    "prompt_tokens": "uniform:16..128",
    "output_tokens": "uniform:8..32",
    "device_memory": "1GiB",
    "max_model_len": 256,
}


def spread_settings(count: int, seed: int) -> list[Settings]:
    """Settings spread evenly over memory share, and over seats, token budget and chunk size on logarithmic scales."""
    from scipy.stats import qmc

    drawn = []
    for share, seats, budget, chunk in qmc.Sobol(4, rng=seed).random(1 << (count - 1).bit_length())[:count]:
        drawn.append(
            Settings(
                gpu_memory_utilization=round(0.76 + 0.19 * share, 3),
                max_num_seqs=round(4 * 16**seats),
                max_num_batched_tokens=round(64 * 16**budget),
                chunk_size=0 if chunk < 1 / 3 else round(32 * 8 ** (1.5 * chunk - 0.5)),
            ).canonical()
        )
    return drawn


def measure(options: argparse.Namespace) -> list[RunRecord]:
    """The default, the others, and the default again; runs that are there already are not made again."""
    arguments = TuneArguments(rate=str(options.rate), window=options.window, seed=options.seed, **LOAD)
    spec, slo = arguments.load_workload(), arguments.parse_slo()
    load = arguments.run_lengths(None).load(options.rate, options.seed)
    settings = [Settings(), *spread_settings(options.settings, options.seed), *[Settings()] * REPEATS]
    target = None
    records = []
    for number, chosen in enumerate(settings):
        path = options.out / "runs" / f"{number:02d}"
        if not path.exists():
            target = target or BundledTarget(arguments.target_options(), spec, Settings(), print)
            measured = target.measure(chosen, load, slo, stop_when_settled=False)
            write_run(path, measured.meta, measured.requests, measured.iterations)
        records.append(RunRecord.load(path))
        summary = records[-1].meta["summary"]
        print(f"run {number} of {len(settings) - 1}: p95 TTFT {summary['p95_ttft_ms']:.0f} ms", flush=True)
    return records


def show(title: str, rows: list[Predicted]) -> dict:
    """Print how far predictions and measurements agree; the same as a record."""
    print(f"\n{title}\n{'':<16} {'median error':>12} {'bias':>8} {'rank corr.':>10}")
    record = {}
    for name in METRICS:
        found = accuracy(rows, name)
        record[name] = asdict(found)
        if found.median_error is not None and found.bias is not None:
            rank = "" if found.rank_correlation is None else f"{found.rank_correlation:.2f}"
            print(f"{name:<16} {100 * found.median_error:11.1f}% {100 * found.bias:+7.1f}% {rank:>10}")
    return record


def repeat_spread(again: list[RunRecord]) -> dict[str, float]:
    """How far the default's repeats lie from their own median: the median of the sizes, per metric."""
    import numpy as np

    spread = {}
    for name, key in METRICS.items():
        values = np.array([run.meta["summary"][key] for run in again], dtype=np.float64)
        spread[name] = float(np.median(np.abs(values / np.median(values) - 1)))
    return spread


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", type=int, default=12, help="beside the default")
    parser.add_argument("--rate", type=float, default=2.0, help="requests per second")
    parser.add_argument("--window", default="30s", help="measured part of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/twin"), help="folder of the runs and the learnt devices")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    try:
        records = measure(options)
        others, again = records[1 : 1 + options.settings], records[1 + options.settings :]
        result = {
            "device": records[0].meta["device"],
            "model": records[0].meta["model"],
            "rate": options.rate,
            "fits": {},
        }
        fits = {"the default alone": records[:1], "three runs": [records[0], others[0], others[-1]]}
        for title, taught in fits.items():
            device = learn_device(taught)
            path = options.out / f"{title.replace(' ', '-')}.json"
            path.write_text(device.to_json())
            unseen = [run for run in others if run not in taught]
            rows = replay(f"{SIMULATED_PREFIX}{path}", unseen)
            result["fits"][title] = show(f"learnt from {title}, {len(unseen)} other settings", rows)
            result["fits"][title]["runs"] = [asdict(row) for row in rows]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    result["repeats"] = repeat_spread([records[0], *again])
    print("\nthe real thing beside itself (median distance of the default's repeats from their median):")
    print(", ".join(f"{name} {100 * spread:.1f} %" for name, spread in result["repeats"].items()))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
