"""What a new study takes from earlier ones: which of them count, in which order, and how their settings fit in."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from tuner.earlier import MOST_STUDIES, find_earlier, why_not
from tuner.prior import MOST_RUNS, MOST_TRIES, Prior, gather, projected
from tuner.settings import Settings
from tuner.space import Choices, Range, SearchSpace
from workloads.early_stop import HELD
from workloads.records import SCHEMA_VERSION

SPACE = SearchSpace(
    {"max_num_seqs": Range(8, 256), "max_num_batched_tokens": Range(512, 8192), "chunk_size": Range(128, 2048)},
    Settings(),
)
CHAT, SUMMARIZE = {"name": "chat"}, {"name": "summarize"}
SLO, LOOSER = "p95_ttft=1s", "p95_ttft=2s"
MakeStudy = Callable[..., Path]


def seats(number: int, **others: Any) -> Settings:
    return replace(Settings(), max_num_seqs=number, **others)


def trial(number: int, settings: Settings, **values: Any) -> dict[str, Any]:
    whole = {"number": number, "kind": "search", "state": "complete", "settings": settings.to_dict(), "runs": []}
    return whole | {"rate": 1.0, "goodput": 1.0, "error": None, "error_type": None} | values


def record(*trials: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The `study.json` of a study on an ordinary GPU."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "study",
        "updated": "2026-01-01T00:00:00+00:00",
        "simulated": False,
        "model": {"name": "qwen", "dtype": "bfloat16", "max_model_len": 4096},
        "device": {"name": "L4", "kind": "cuda", "memory_bytes": 24 << 30, "threads": None},
        "environment": None,
        "workload": CHAT,
        "slo": SLO,
        "options": {"arguments": {"device": "cuda"}},
        "state": "complete",
        "trials": list(trials),
        "importance": {},
        "best": None,
        "confirmation": None,
    } | values


@pytest.fixture
def make_study(tmp_path: Path) -> MakeStudy:
    """Writes a study into a folder of `old`; `runs` of its trials get a folder each."""

    def make(name: str, study: dict[str, Any]) -> Path:
        folder = tmp_path / "old" / name
        folder.mkdir(parents=True)
        (folder / "study.json").write_text(json.dumps(study))
        for run in (run for t in study["trials"] for run in t["runs"]):
            (folder / run["path"]).mkdir(parents=True)
            (folder / run["path"] / "run.json").write_text("{}")
        return folder

    return make


def taken(tmp_path: Path, new: dict[str, Any] | None = None, space: SearchSpace = SPACE) -> Prior:
    """What a new study in `old` takes from those beside it."""
    return gather(find_earlier(["auto"], tmp_path / "old" / "new", pytest.fail), new or record(), space)


def test_studies_beside_the_new_one_are_found_and_damaged_ones_are_passed_over_in_silence(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    make_study("good", record())
    make_study("other-schema", record() | {"schema_version": 1})
    (make_study("cut", record()) / "study.json").write_text('{"kind": "stu')
    (tmp_path / "old" / "no-study").mkdir()
    found = find_earlier(["auto"], tmp_path / "old" / "new", pytest.fail)
    assert [study.name for study in found] == ["good"]


def test_without_a_store_nothing_is_found(tmp_path: Path) -> None:
    assert find_earlier(["auto"], tmp_path / "nowhere" / "new", pytest.fail) == []


def test_of_a_large_store_only_the_newest_studies_are_read(tmp_path: Path, make_study: MakeStudy) -> None:
    for number in range(MOST_STUDIES + 3):
        path = make_study(f"{number:03d}", record())
        os.utime(path / "study.json", (number, number))
    found = find_earlier(["auto"], tmp_path / "old" / "new", pytest.fail)
    assert [study.name for study in found] == [f"{n:03d}" for n in reversed(range(3, MOST_STUDIES + 3))]


def test_off_takes_nothing_and_stands_alone(tmp_path: Path, make_study: MakeStudy) -> None:
    make_study("good", record())
    assert find_earlier(["off"], tmp_path / "old" / "new", pytest.fail) == []
    with pytest.raises(UserError, match="off stands alone"):
        find_earlier(["off", "auto"], tmp_path / "old" / "new", pytest.fail)


def test_a_study_that_is_found_twice_counts_once(tmp_path: Path, make_study: MakeStudy) -> None:
    path = make_study("good", record())
    found = find_earlier([str(path), "auto", str(path.parent)], tmp_path / "old" / "new", pytest.fail)
    assert [study.name for study in found] == ["good"]


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no study\.json"):
        find_earlier([str(tmp_path)], tmp_path / "new", pytest.fail)


def test_a_named_study_that_is_damaged_is_refused_by_name(tmp_path: Path, make_study: MakeStudy) -> None:
    path = make_study("cut", record())
    (path / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"cut.study\.json is damaged"):
        find_earlier([str(path)], tmp_path / "new", pytest.fail)


def test_of_a_folder_of_studies_those_that_cannot_be_used_are_named_and_the_others_used(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    folder = make_study("good", record(trial(0, seats(64)))).parent
    make_study("elsewhere", record() | {"device": {"name": "H100", "kind": "cuda"}})
    (make_study("cut", record()) / "study.json").write_text("{")
    said: list[str] = []
    prior = gather(find_earlier([str(folder)], tmp_path / "new", said.append), record(), SPACE)
    assert prior.studies == ("good",)
    assert len(said) == 2
    assert any("cut" in line and "damaged" in line for line in said)
    assert any("elsewhere" in line and "H100" in line and "L4" in line for line in said)


@pytest.mark.parametrize(
    ("part", "values", "reason"),
    [
        ("model", {"name": "llama"}, "model has name llama, the one here qwen"),
        ("model", {"dtype": "float16"}, "dtype float16"),
        ("device", {"name": "A10"}, "name A10"),
        ("device", {"kind": "cpu"}, "kind cpu"),
        ("device", {"memory_bytes": 1}, "memory_bytes 1"),
        ("device", {"threads": 4}, "threads 4"),
    ],
)
def test_another_model_or_device_says_nothing(
    tmp_path: Path, make_study: MakeStudy, part: str, values: dict[str, Any], reason: str
) -> None:
    other = record(trial(0, seats(64)))
    other[part] |= values
    path = make_study("other", other)
    assert taken(tmp_path) == Prior()
    with pytest.raises(UserError, match=reason):
        gather(find_earlier([str(path)], tmp_path / "new", pytest.fail), record(), SPACE)


def test_requests_may_be_of_another_length_and_a_device_may_be_unknown() -> None:
    longer = record()
    longer["model"] |= {"max_model_len": 32768}
    assert why_not(longer, record()) is None
    assert why_not(record() | {"device": None}, record()) is not None


def test_a_simulated_device_learns_only_from_the_very_same_one() -> None:
    def simulated(asked: str) -> dict[str, Any]:
        device = {"name": "sim", "kind": "sim", "memory_bytes": 1, "threads": None}
        return record(simulated=True, device=device, options={"arguments": {"device": asked}})

    assert why_not(simulated("sim:a.json"), simulated("sim:a.json")) is None
    assert "sim:b.json" in (why_not(simulated("sim:b.json"), simulated("sim:a.json")) or "")


def test_the_best_settings_come_from_the_likest_study_first_and_each_once(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    new = "2026-05-01T00:00:00+00:00"
    make_study("other workload", record(trial(0, seats(16)), workload=SUMMARIZE, updated=new))
    make_study("other slo", record(trial(0, seats(24)), slo=LOOSER, updated=new))
    make_study(
        "same", record(trial(0, seats(32), rate=1.0), trial(1, seats(48), rate=3.0), trial(2, seats(24), rate=0.5))
    )
    assert taken(tmp_path).tries == (seats(48), seats(32), seats(24))


def test_what_a_study_recommended_goes_before_what_its_search_found(tmp_path: Path, make_study: MakeStudy) -> None:
    trials = [trial(0, seats(32), rate=1.0), trial(1, seats(48), rate=3.0)]
    make_study("study", record(*trials, best={"trial": 0}))
    assert taken(tmp_path).tries == (seats(32), seats(48))


def test_the_baseline_settings_that_missed_and_settings_of_no_known_kind_are_not_tried(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    strange = trial(3, seats(96))
    strange["settings"] |= {"no_such_setting": 1}
    missed = trial(1, seats(64), state="infeasible")
    make_study("study", record(trial(0, Settings()), missed, trial(2, seats(128), state="failed"), strange))
    assert taken(tmp_path).tries == ()


def test_at_most_a_few_settings_are_tried(tmp_path: Path, make_study: MakeStudy) -> None:
    make_study("study", record(*(trial(n, seats(n), rate=n) for n in (16, 24, 32, 48, 64))))
    assert taken(tmp_path).tries == (seats(64), seats(48), seats(32))
    assert MOST_TRIES == 3


def test_settings_are_projected_into_the_space() -> None:
    space = replace(SPACE, fixed=replace(Settings(), gpu_memory_utilization=0.8))
    there = seats(64, max_num_batched_tokens=16384, chunk_size=512, gpu_memory_utilization=0.95)
    # Fixed here: the memory share. Outside of its range: the token budget, which stays as in the baseline.
    assert projected(there, space) == seats(64, chunk_size=512, gpu_memory_utilization=0.8)
    few = SearchSpace({"max_num_seqs": Choices((64, 128)), "policy": Choices(("fcfs", "sjf"))}, seats(128))
    assert projected(seats(64, policy="sjf"), few) == seats(64, policy="sjf")
    assert projected(seats(96, policy="sjf"), few) == seats(128, policy="sjf")
    assert projected(seats(64, policy="priority"), few) == seats(64)


def test_settings_that_the_space_cannot_draw_are_left_out() -> None:
    assert projected(seats(100), SPACE) is None, "numbers are drawn rounded"
    outside = SearchSpace({"max_num_seqs": Choices((64, 128))}, seats(256))
    assert projected(seats(96), outside) is None, "neither its seats nor the baseline's can be drawn"


def test_only_failures_that_more_memory_would_not_mend_and_that_may_be_drawn_here_are_taken(
    tmp_path: Path, make_study: MakeStudy
) -> None:
    def failed(number: int, settings: Settings, error_type: str | None) -> dict[str, Any]:
        return trial(number, settings, state="failed", error="why", error_type=error_type)

    trials = [
        failed(1, seats(240), "OutOfDeviceMemory"),
        failed(2, seats(224), "RuntimeError"),
        failed(3, seats(208), "KVCacheTooSmall"),
        failed(4, seats(192), None),
        failed(5, seats(160, block_size=32), "RuntimeError"),
        failed(6, seats(240), "OutOfDeviceMemory"),
    ]
    make_study("study", record(*trials))
    assert taken(tmp_path).failed == (seats(240), seats(224))


def test_runs_that_nothing_cut_short_are_taken_the_newest_first(tmp_path: Path, make_study: MakeStudy) -> None:
    def with_runs(*runs: tuple[str, str | None]) -> dict[str, Any]:
        return trial(0, seats(64), runs=[{"path": f"runs/{name}", "stopped_early": why} for name, why in runs])

    make_study("old", record(with_runs(("001", None), ("002", "verdict settled"), ("003", HELD))))
    new = make_study("new-one", record(with_runs(("001", None), ("002", None)), updated="2026-05-01T00:00:00+00:00"))
    (new / "runs" / "002" / "run.json").unlink()
    prior = taken(tmp_path)
    assert [path.relative_to(tmp_path / "old") for path in prior.runs] == [
        Path("new-one/runs/001"),
        Path("old/runs/003"),
        Path("old/runs/001"),
    ]
    make_study("many", record(with_runs(*((f"{n:03d}", None) for n in range(20)))))
    assert len(taken(tmp_path).runs) == MOST_RUNS


def test_what_was_taken_is_the_same_again_after_an_interruption(tmp_path: Path, make_study: MakeStudy) -> None:
    run = {"path": "runs/001", "stopped_early": None}
    failed = trial(1, seats(240), state="failed", error_type="RuntimeError")
    path = make_study("study", record(trial(0, seats(64), runs=[run]), failed))
    prior = taken(tmp_path)
    folder = tmp_path / "old" / "new"
    folder.mkdir()
    stored = json.loads(json.dumps(prior.to_dict(folder)))
    assert {key: stored[key] for key in ("studies", "tries", "failed", "runs")} == {
        "studies": ["study"],
        "tries": 1,
        "failed": 1,
        "runs": 1,
    }
    again = Prior.restored(stored, folder)
    assert replace(again, runs=()) == replace(prior, runs=())
    assert [run.resolve() for run in again.runs] == [(path / "runs" / "001").resolve()]
    (path / "runs" / "001" / "run.json").unlink()
    assert Prior.restored(stored, folder).runs == ()
    assert Prior.restored(None, folder) == Prior()


def test_a_damaged_warm_start_is_refused_when_the_study_goes_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be resumed"):
        Prior.restored({"studies": []}, tmp_path)
