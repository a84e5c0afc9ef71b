"""Runs in vLLM's own environment: answers every line on its input with the output tokens of one whole run.

Usage: vllm_worker.py MODEL_FOLDER JOBS.json MAX_NUM_SEQS
"""

import json
import sys

from vllm import LLM, SamplingParams


def main() -> None:
    model, jobs_file, max_num_seqs = sys.argv[1:]
    engine = LLM(
        model,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=int(max_num_seqs),
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    with open(jobs_file, encoding="utf-8") as file:
        jobs = json.load(file)
    print("ready", flush=True)
    for line in sys.stdin:
        chosen = jobs[: int(line)]
        sampling = [
            SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, detokenize=False)
            for _, output_tokens in chosen
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in chosen]
        answers = engine.generate(prompts, sampling, use_tqdm=False)
        print(sum(len(answer.outputs[0].token_ids) for answer in answers), flush=True)


if __name__ == "__main__":
    main()
