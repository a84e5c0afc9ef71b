"""Whatever the user can mend ends with exit code 2 and one sentence that names the value, never with a traceback."""

import json
import struct
from pathlib import Path

import pytest
import torch

from engine.executor.simulated import SimulatedExecutor
from tests.tuner.small_studies import ENGINE, LOAD, SLO, SMALL, Tune, files_in

BENCH = ("bench", *SMALL)


def refused(tune: Tune, *arguments: str, naming: str) -> None:
    outcome = tune(*arguments)
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err + outcome.out
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, outcome.err
    assert outcome.err.rstrip().endswith(errors[0])
    assert naming in errors[0]
    assert outcome.out == ""


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (["--model", "random:qwen9"], "qwen9"),
        (["--model", "./no-such-folder"], "no-such-folder"),
        (["--model", "missing.gguf"], "missing.gguf"),
        (["--slo", "p95_ttft=1000"], "1000"),
        (["--slo", "p95_ttlt=1s"], "ttlt"),
        (["--slo", "p95_ttft=-1s"], "-1s"),
        (["--slo", "p95_ttft=1s,p95_ttft=2s"], "p95_ttft"),
        (["--slo", "fast"], "fast"),
        (["--rate", "0"], "0"),
        (["--rate", "-3"], "-3"),
        (["--rate", "fast"], "fast"),
        (["--rate", "nan"], "nan"),
        (["--rate", "inf"], "inf"),
        (["--window", "0s"], "0s"),
        (["--warmup", "x"], "x"),
        (["--drain-timeout", "60"], "60"),
        (["--device", "sim:b9000"], "sim:b9000"),
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda:x"], "cuda:x"),
        (["--dtype", "int3"], "int3"),
        (["--kv-cache-dtype", "int4"], "int4"),
        (["--max-model-len", "99999999"], "99999999"),
        (["--max-model-len", "100"], "100"),
        (["--device-memory", "16"], "16"),
        (["--set", "seats=8"], "seats"),
        (["--set", "max_num_seqs"], "max_num_seqs"),
        (["--set", "max_num_seqs=many"], "many"),
        (["--set", "max_num_seqs=0"], "0"),
        (["--set", "gpu_memory_utilization=1.5"], "1.5"),
        (["--set", "policy=lifo"], "lifo"),
        (["--set", "max_seqs=8"], "max_num_seqs"),
        (["--set", "queue_timeout=5"], "'5'"),
        (["--set", "swap_space=4x"], "4x"),
        (["--workload", "talk"], "talk"),
        (["--arrival", "sometimes"], "sometimes"),
        (["--arrival", "gamma:burstiness=-1"], "-1"),
        (["--prompt-tokens", "uniform:9..3"], "9..3"),
        (["--output-tokens", "0"], "0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", ["tune", "bench"])
def test_option_that_cannot_be(tune: Tune, command: str, arguments: list[str], naming: str) -> None:
    given = {SMALL[i]: SMALL[i + 1] for i in range(0, len(SMALL), 2)} | {"--rate": "4"}
    given |= {arguments[0]: arguments[1]}
    words = [word for pair in given.items() for word in pair]
    refused(tune, *(["bench"] if command == "bench" else []), *words, naming=naming)


@pytest.mark.parametrize(
    ("text", "naming"),
    [
        ("seats=4..8", "seats"),
        ("max_num_seqs=8..4", "8..4"),
        ("max_num_seqs=0..4", "0"),
        ("policy=fcfs,lifo", "lifo"),
        ("chunk_size", "chunk_size"),
    ],
)
def test_search_that_cannot_be(tune: Tune, text: str, naming: str) -> None:
    refused(tune, *SMALL, "--search", text, naming=naming)


@pytest.mark.parametrize("arguments", [["--seats", "4"], ["--seed", "x"], ["--trials", "0"]], ids=" ".join)
def test_what_the_option_parser_refuses_is_named_with_the_usage(tune: Tune, arguments: list[str]) -> None:
    outcome = tune(*SMALL, *arguments)
    assert outcome.code == 2
    assert arguments[0] in outcome.err
    assert "Traceback" not in outcome.err


def test_no_objective_shows_the_help(tune: Tune) -> None:
    outcome = tune(*ENGINE, *LOAD)
    assert outcome.code == 2
    assert "--slo" in outcome.out + outcome.err


def test_two_forms_of_the_objective_at_once(tune: Tune) -> None:
    refused(tune, *SMALL, "--goodput", "ttft:1000", naming="--goodput")


@pytest.mark.parametrize("value", ["ttft", "ttft:fast", "tttt:100", "ttft:0"])
def test_goodput_that_cannot_be(tune: Tune, value: str) -> None:
    refused(tune, *ENGINE, *LOAD, "--goodput", value, naming=value.partition(":")[0])


def test_bench_without_a_rate(tune: Tune) -> None:
    refused(tune, *BENCH, naming="--rate")


def test_rate_for_a_closed_loop(tune: Tune) -> None:
    for command in ((), ("bench",)):
        refused(tune, *command, *SMALL, "--arrival", "closed:concurrency=8", "--rate", "4", naming="closed")


@pytest.mark.skipif(torch.cuda.device_count() > 7, reason="this machine has eight GPUs")
def test_gpu_that_is_not_there(tune: Tune) -> None:
    refused(tune, "--device", "cuda:7", *LOAD, *SLO, naming="cuda:7")


@pytest.mark.parametrize("budget", ["10", "soon", "0s", "-5m"])
def test_budget_that_is_no_duration(tune: Tune, budget: str) -> None:
    refused(tune, *SMALL, "--budget", budget, naming=budget)


def test_budget_too_short_for_the_baseline(tune: Tune) -> None:
    refused(tune, *SMALL, "--budget", "1s", naming="--budget 1s")


def truncated_safetensors(folder: Path) -> Path:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 256,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
    }
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [256, 64], "data_offsets": [0, 65536]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 100)
    return folder


def truncated_gguf(path: Path) -> Path:
    # Magic, version 3, and counts that promise tensors and keys which do not follow.
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 10, 20) + b"\0" * 8)
    return path


@pytest.mark.parametrize("device", ["sim:l4", "cpu"])
@pytest.mark.parametrize("command", [(), ("bench", "--rate", "4")], ids=["tune", "bench"])
def test_truncated_model_file(tune: Tune, tmp_path: Path, command: tuple[str, ...], device: str) -> None:
    gguf = truncated_gguf(tmp_path / "cut.gguf")
    refused(tune, *command, "--model", str(gguf), "--device", device, *LOAD, *SLO, naming="cut.gguf")
    if device == "cpu":
        folder = truncated_safetensors(tmp_path / "cut-model")
        refused(tune, *command, "--model", str(folder), "--device", device, *LOAD, *SLO, naming="cut-model")


def test_kv_cache_too_small_is_refused_before_anything_is_loaded(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.executor import torch_executor

    def load(*_: object, **__: object) -> None:
        raise AssertionError("weights must not be loaded")

    monkeypatch.setattr(torch_executor.TorchExecutor, "load", load)
    for device in ("cpu", "sim:l4"):
        arguments = ("--device", device, "--model", "random:qwen2.5-7b", "--device-memory", "1GiB", *LOAD, *SLO)
        refused(tune, *arguments, naming="1.00 GiB")
        refused(tune, "bench", "--rate", "1", *arguments, naming="1.00 GiB")


@pytest.mark.parametrize(
    ("content", "naming"),
    [
        ("prompt_tokens: 10\noutput_tokens: 10\nseats: 4\n", "seats"),
        ("prompt_tokens: 10\n", "output_tokens"),
        ("- 10\n", "mine.yaml"),
        ("prompt_tokens: 40000\noutput_tokens: 10\n", "40010"),
    ],
    ids=["unknown key", "missing key", "no keys", "longer than the model"],
)
def test_workload_file_that_cannot_be(tune: Tune, tmp_path: Path, content: str, naming: str) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    refused(tune, *ENGINE, "--workload", "mine.yaml", *SLO, naming=naming)


def test_workload_file_that_is_no_yaml_is_named_with_the_place_of_the_fault(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("prompt_tokens: [10\n")
    outcome = tune(*ENGINE, "--workload", "mine.yaml", *SLO)
    assert outcome.code == 2
    assert outcome.err.startswith("error: the workload mine.yaml")
    assert "line 1" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("command", [(), ("bench", "--rate", "4")], ids=["tune", "bench"])
def test_output_that_cannot_be_written_is_refused_before_measuring(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def execute(*_: object) -> None:
        raise AssertionError("nothing may be measured")

    monkeypatch.setattr(SimulatedExecutor, "execute", execute)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "other.txt").write_text("somebody's")
    for out in ("file", "file/below", "full"):
        refused(tune, *command, *SMALL, "--out", out, naming=out)
    assert files_in(tmp_path) == {"file": b"in the way", "full/other.txt": b"somebody's"}


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (["--model", "random:qwen9"], "qwen9"),
        (["--device-memory", "1GiB"], "1.00 GiB"),
        (["--arrival", "closed:8", "--rate", "4"], "closed"),
        (["--rate", "100000", "--window", "1h"], "requests"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", [(), ("bench",), ("compare", "policy")], ids=["tune", "bench", "compare"])
def test_refusals_leave_no_folder_behind(
    tune: Tune, tmp_path: Path, command: tuple[str, ...], arguments: list[str], naming: str
) -> None:
    rate = () if "--rate" in arguments or not command else ("--rate", "4")
    refused(tune, *command, *SMALL, *rate, *arguments, "--out", "new", naming=naming)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["report", "nowhere"], ["--resume", "nowhere"]], ids=" ".join)
def test_folder_without_a_record(tune: Tune, command: list[str]) -> None:
    refused(tune, *command, naming="nowhere")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"schema_version": 99, "kind": "study"}', '{"schema_version": 2, "kind": "run"}'],
)
def test_damaged_study_is_neither_resumed_nor_reported(tune: Tune, tmp_path: Path, content: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.json").write_text(content)
    refused(tune, "--resume", "s", naming="study.json")
    refused(tune, "report", "s", naming="study.json")
    assert (tmp_path / "s" / "study.json").read_text() == content
