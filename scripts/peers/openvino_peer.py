"""OpenVINO GenAI's continuous batching, with keys and values in float32 or in its usual float16."""

import os
from pathlib import Path

from scripts.peers.environment import environment, peers_folder, run
from scripts.peers.worker import WorkerPeer
from scripts.peers.workload import Job

_RUN = [["openvino==2026.4.1", "openvino-genai==2026.4.1.0"]]
# The exporter's own requirements name a torchvision that it does not need.
_EXPORT = [
    ["torch==2.13.0", "transformers==5.5.4", "openvino==2026.4.1", "nncf==3.4.0", "requests"],
    ["--no-deps", "optimum==2.3.0", "optimum-intel==2.2.0", "openvino-tokenizers==2026.4.1.0"],
]
_EXPORT_CODE = """
import sys
from optimum.intel import OVModelForCausalLM
model = OVModelForCausalLM.from_pretrained(sys.argv[1], export=True, load_in_8bit=False, compile=False)
model.save_pretrained(sys.argv[2])
"""
# Tokens of a step: on two cores steps of this size served it best.
TOKEN_BUDGET = 256


def openvino_peer(weights: Path, jobs: list[Job], kv_precision: str, threads: int) -> WorkerPeer:
    """A running pipeline.

    Args:
        weights: of `hugging_face_folder`.
        kv_precision: `f32` or `f16`.

    Raises:
        UserError: it cannot be installed or started.
    """
    model = peers_folder() / "models" / f"{weights.name}-openvino"
    if not (model / "openvino_model.xml").is_file():
        exporter = environment("openvino-export", _EXPORT)
        run([str(exporter), "-c", _EXPORT_CODE, str(weights), str(model)], "exporting the model for OpenVINO")
    worker = Path(__file__).with_name("openvino_worker.py")
    command = [str(environment("openvino", _RUN)), str(worker), str(model), "{jobs}", kv_precision]
    return WorkerPeer(
        f"OpenVINO GenAI (KV {kv_precision})",
        [*command, str(TOKEN_BUDGET), str(threads)],
        jobs,
        dict(os.environ),
    )
