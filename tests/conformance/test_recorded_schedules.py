"""Our scheduler reproduces recorded schedules of vLLM's V1 scheduler, and the worked rows of its rules."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.clock import VirtualClock
from engine.config import SchedulerConfig
from engine.executor.base import StepResult
from engine.kv_cache.manager import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduler.scheduler import Scheduler
from scripts.check_schedules import first_difference, main

RECORDED = Path(__file__).with_name("vllm_v1_schedules.json")
SCENARIOS = json.loads(RECORDED.read_text())["scenarios"]


@pytest.mark.parametrize("start", range(0, len(SCENARIOS), 50))
def test_every_step_of_every_recorded_scenario_is_reproduced(start: int) -> None:
    differences = [first_difference(s) for s in SCENARIOS[start : start + 50]]
    assert [d for d in differences if d] == []


def test_check_schedules_names_the_first_step_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = json.loads(json.dumps(SCENARIOS[0]))
    scenario["steps"][1]["free_blocks"] += 1
    file = tmp_path / "changed.json"
    file.write_text(json.dumps({"scenarios": [scenario]}))
    assert main([str(file)]) == 1
    assert f"{scenario['name']}, step 1, free_blocks" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["not json", "[]", '{"scenarios": 3}', '{"scenarios": [{}]}'])
def test_check_schedules_refuses_a_file_that_holds_no_scenarios(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text(content)
    assert main([str(file)]) == 2


def steps_of(
    requests: str,
    *,
    num_blocks: int = 1000,
    caching: bool = False,
    in_turn: bool = False,
    priority: dict[str, int] | None = None,
    at_step: dict[str, int] | None = None,
    **config: Any,
) -> list[str]:
    """Run requests written as `A8/5` (prompt 8, max_tokens 5) and return the steps in the rules' notation.

    Equal names have equal prompts. `in_turn` gives each request its own time, one after the other.
    """
    scheduler = Scheduler(
        SchedulerConfig(policy="priority" if priority else "fcfs", **config),
        KVCacheManager(num_blocks, 4, enable_prefix_caching=caching),
        VirtualClock(),
        max_model_len=1000,
    )
    pending = []
    for number, text in enumerate(requests.split()):
        name, sizes = text[0], text[1:].split("/")
        prompt = [100 * ord(name) + i for i in range(int(sizes[0]))]
        max_tokens = int(sizes[1]) if len(sizes) > 1 else 50
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(f"{name}.{number}", prompt, sampling, priority=(priority or {}).get(name, 0))
        pending.append(((at_step or {}).get(name, 0), request))
    steps, step = [], 0
    while (pending or scheduler.has_work) and step < 12:
        while pending and pending[0][0] <= step and not (in_turn and scheduler.has_work):
            scheduler.add(pending.pop(0)[1])
        plan = scheduler.schedule()
        preempted = "".join(f" preempts {r.request_id[0]}" for r in plan.preempted)
        steps.append(
            "{" + ",".join(f"{s.request.request_id[0]}{s.num_tokens}" for s in plan.scheduled) + "}" + preempted
        )
        scheduler.finish_step(plan, StepResult([7] * sum(s.samples for s in plan.scheduled)))
        step += 1
    return steps


def test_budget_is_shared_in_order_of_arrival() -> None:
    steps = steps_of("A6 B9 C3", max_num_batched_tokens=10)
    assert steps[:3] == ["{A6,B4}", "{A1,B5,C3}", "{A1,B1,C1}"]


def test_seats_limit_who_runs() -> None:
    assert steps_of("A4/2 B4/2 C4/2", max_num_seqs=2) == ["{A4,B4}", "{A1,B1}", "{C4}", "{C1}"]


def test_chunk_size_caps_a_request_that_is_not_alone() -> None:
    steps = steps_of("A12/3 B3/3", chunk_size=4)
    assert steps == ["{A4,B3}", "{A4,B1}", "{A4,B1}", "{A1}", "{A1}"]


def test_the_last_running_request_is_preempted_under_fcfs() -> None:
    steps = steps_of("A8/5 B8/5", num_blocks=5)
    assert steps[:7] == ["{A8,B8}", "{A1} preempts B", "{A1}", "{A1}", "{A1}", "{B9}", "{B1}"]


def test_the_least_urgent_request_is_preempted_under_priority() -> None:
    steps = steps_of("A9/9 B8/4", num_blocks=5, priority={"A": 1, "B": 0}, at_step={"B": 1})
    assert steps[:6] == ["{A9}", "{A1,B8}", "{B1} preempts A", "{B1}", "{B1}", "{A11}"]


def test_admission_needs_room_for_all_known_tokens() -> None:
    steps = steps_of("A4/4 B17/2", num_blocks=5, max_num_batched_tokens=8)
    assert steps == ["{A4}", "{A1}", "{A1}", "{A1}", "{B8}", "{B8}", "{B1}", "{B1}"]


def test_eviction_takes_tails_before_heads() -> None:
    steps = steps_of("A9/1 B9/1 X12/1 A9/1 B9/1", num_blocks=6, caching=True, in_turn=True)
    assert steps == ["{A9}", "{B9}", "{X12}", "{A5}", "{B9}"]
