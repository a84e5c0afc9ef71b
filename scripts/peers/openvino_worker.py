"""Runs in OpenVINO's own environment: answers every line on its input with the output tokens of one whole run.

Usage: openvino_worker.py MODEL_FOLDER JOBS.json KV_PRECISION TOKEN_BUDGET THREADS
"""

import json
import sys

import numpy as np
import openvino
import openvino_genai

# Keys and values of the whole workload, with room to spare.
CACHE_GIB = 3


def main() -> None:
    model, jobs_file, kv_precision, token_budget, threads = sys.argv[1:]
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.dynamic_split_fuse = True
    scheduler.max_num_batched_tokens = int(token_budget)
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        model,
        scheduler,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": openvino.Type.f32,
            "KV_CACHE_PRECISION": {"f32": openvino.Type.f32, "f16": openvino.Type.f16}[kv_precision],
            "INFERENCE_NUM_THREADS": int(threads),
        },
    )
    with open(jobs_file, encoding="utf-8") as file:
        jobs = json.load(file)
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        handles = []
        for number, (prompt, output_tokens) in enumerate(jobs[:count]):
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = output_tokens
            config.ignore_eos = True
            config.do_sample = False
            tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(number, tokens, config))
        while pipeline.has_non_finished_requests():
            pipeline.step()
        print(sum(len(handle.read_all()[0].generated_ids) for handle in handles), flush=True)


if __name__ == "__main__":
    main()
