"""What is said of settings that do nothing, or not what their name promises, in one line each."""

from pathlib import Path
from typing import Any

import pytest

from tests.tuner.small_studies import ENGINE, LOAD, SMALL, Tune, read_json, study_in
from tuner.notices import chosen_settings, missed_everywhere, say_inert, say_near_duplicates, with_queue_delay
from tuner.settings import Settings
from tuner.store import Run
from tuner.trial import Trial
from workloads.slo import parse_slo
from workloads.spec import load_spec

DYNAMIC = ("--set", "batching=dynamic")
AGING = ("--set", "aging=5s")
HELD = [word for text in ("gpu_memory_utilization=0.9", "max_num_seqs=16", "max_num_batched_tokens=512",
                          "chunk_size=off") for word in ("--set", text)]  # fmt: skip
BENCH = ("bench", *SMALL, "--rate", "4", "--out", "b")
STUDY = (*SMALL, *HELD, "--rate", "2", "--trials", "1", "--out", "s")
COMPARE = ("compare", *ENGINE, *LOAD, "--rate", "4", "--out", "c")


def lines(text: str, containing: str) -> list[str]:
    return [line for line in text.splitlines() if containing in line]


def test_dynamic_batches_have_a_delay_unless_the_user_gives_one() -> None:
    said: list[str] = []
    assert with_queue_delay(Settings(), ("continuous", "static"), (), said.append) == Settings()
    assert with_queue_delay(Settings(), ("dynamic",), ["max_queue_delay"], said.append) == Settings()
    assert said == []
    assert with_queue_delay(Settings(), ("static", "dynamic"), (), said.append) == Settings(max_queue_delay=0.1)
    assert len(said) == 1


@pytest.mark.usefixtures("no_reports")
def test_every_command_gives_dynamic_batches_a_delay_and_says_so(tune: Tune, tmp_path: Path) -> None:
    benched = tune(*BENCH, *DYNAMIC, "--json")
    studied = tune(*STUDY, *DYNAMIC, "--search", "max_num_seqs=8..32", "--json")
    compared = tune(*COMPARE, *DYNAMIC, "policy=fcfs,sjf", "--json")
    for outcome in (benched, studied, compared):
        assert outcome.code in (0, 1), outcome.err
        assert len(lines(outcome.err, "max_queue_delay=0.1s")) == 1
    assert read_json(tmp_path / "b" / "run.json")["settings"]["max_queue_delay"] == 0.1
    assert {t["settings"]["max_queue_delay"] for t in study_in(tmp_path / "s")["trials"]} == {0.1}
    assert read_json(tmp_path / "c" / "comparison.json")["settings"]["max_queue_delay"] == 0.1


@pytest.mark.usefixtures("no_reports")
def test_a_delay_that_was_switched_off_stays_off(tune: Tune, tmp_path: Path) -> None:
    outcome = tune(*BENCH, *DYNAMIC, "--set", "max_queue_delay=off", "--json")
    assert outcome.code == 0, outcome.err
    assert "max_queue_delay" not in outcome.err
    assert read_json(tmp_path / "b" / "run.json")["settings"]["max_queue_delay"] == 0


@pytest.mark.usefixtures("no_reports")
def test_every_command_names_a_setting_that_does_nothing(tune: Tune) -> None:
    for command in ((*BENCH, *AGING), (*STUDY, *AGING, "--search", "max_num_seqs=8..32"),
                    (*COMPARE, *AGING, "max_num_seqs=4,16")):  # fmt: skip
        outcome = tune(*command, "--json")
        assert outcome.code == 0, outcome.err
        (line,) = lines(outcome.err, "does nothing")
        assert line.endswith("aging=5s does nothing beside policy=fcfs")


@pytest.mark.usefixtures("no_reports")
def test_a_setting_that_acts_beside_one_of_the_values_tried_is_not_named(tune: Tune) -> None:
    for command in ((*STUDY, *AGING, "--search", "policy=fcfs,sjf"), (*COMPARE, *AGING, "policy=fcfs,sjf")):
        outcome = tune(*command, "--json")
        assert outcome.code == 0, outcome.err
        assert "does nothing" not in outcome.err


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["batching=dynamic"], ["max_queue_delay=0.1s for the dynamic batches"]),
        (["batching=static", "preferred_batch_size=8"], ["preferred_batch_size=8 does nothing beside batching=static"]),
        (["swap_space=1GiB"], ["swap_space=1GiB does nothing beside preemption_mode=recompute"]),
        (["aging=5s", "preemption_victim=lowest_priority"], []),
        # As if it had not been given.
        (["aging=off", "swap_space=4GiB"], []),
    ],
    ids=str,
)
def test_a_server_names_them_too(texts: list[str], said: list[str]) -> None:
    heard: list[str] = []
    settings = chosen_settings(texts, heard.append)
    assert [line[: len(text)] for line, text in zip(heard, said, strict=True)] == said
    assert settings.override(texts) == settings


def test_what_is_inert_beside_each_of_several_values_names_them_all() -> None:
    said: list[str] = []
    tried = [Settings(max_queue_delay=1.0), Settings(max_queue_delay=1.0, batching="static")]
    say_inert(["max_queue_delay"], tried, said.append)
    assert said == ["max_queue_delay=1s does nothing beside batching=continuous or batching=static"]


@pytest.mark.parametrize(
    ("option", "values", "workload", "naming"),
    [
        ("policy", ("fcfs", "sjf", "priority", "tiered"), "chat-small",
         ["priority orders them as fcfs does", "tiered orders them as sjf does"]),
        ("policy", ("fcfs", "sjf"), "chat-small", []),
        ("policy", ("fcfs", "priority"), "mixed-small", []),
        ("retried_first", (True, False), "mixed-small", ["retries: 0"]),
        ("max_num_seqs", (8, 16), "chat-small", []),
    ],
)  # fmt: skip
def test_values_that_a_workload_cannot_tell_apart_are_named_in_one_line(
    option: str, values: tuple[Any, ...], workload: str, naming: list[str]
) -> None:
    said: list[str] = []
    say_near_duplicates(option, values, load_spec(workload), said.append)
    assert len(said) == bool(naming)
    assert all(text in said[0] for text in naming)


def test_retries_make_a_difference_to_who_was_sent_again() -> None:
    said: list[str] = []
    spec = load_spec("chat-small").model_copy(update={"retries": 2})
    say_near_duplicates("retried_first", (True, False), spec, said.append)
    assert said == []


@pytest.mark.usefixtures("no_reports")
def test_a_comparison_says_so_before_it_measures(tune: Tune) -> None:
    outcome = tune(*COMPARE, "policy=fcfs,priority", "--json")
    assert outcome.code == 0, outcome.err
    assert "priority orders them as fcfs does" in outcome.err.splitlines()[0]


def missed(*rates: float | None, **settings: Any) -> str:
    runs = [Run(f"runs/{i:03d}", {"rate": rate}) for i, rate in enumerate(rates)]
    return missed_everywhere(Trial(0, "baseline", Settings(**settings), runs=runs), parse_slo(["p95_ttft=1s"]))


def test_a_default_that_holds_no_rate_is_said_to_have_missed_all_that_were_tried() -> None:
    assert missed(None) == "the default settings do not meet p95_ttft=1s; looking for some that do"
    assert "p95_ttft=1s at 6 requests/s;" in missed(6.0)
    assert "at any of 3 rates from 1.5 to 4 requests/s;" in missed(4.0, 3.0, 1.5)


def test_lower_rates_are_not_called_easier_where_batches_wait_to_grow() -> None:
    assert "lower ones need not be easier" not in missed(4.0, 3.0)
    assert "lower ones need not be easier" not in missed(4.0, 3.0, max_queue_delay=5.0)
    growing = missed(4.0, 3.0, batching="dynamic", max_queue_delay=5.0)
    assert "lower ones need not be easier: with max_queue_delay=5s" in growing


@pytest.mark.usefixtures("no_reports")
def test_the_search_for_a_rate_ends_where_low_rates_miss_because_batches_wait(tune: Tune, tmp_path: Path) -> None:
    delay = ("--set", "batching=dynamic", "--set", "max_queue_delay=20s")
    outcome = tune(*SMALL, *HELD, *delay, "--search", "max_num_seqs=100..200", "--trials", "1", "--out", "s")
    assert outcome.code == 1, outcome.err
    assert len(study_in(tmp_path / "s")["trials"][0]["runs"]) <= 7
    assert "lower ones need not be easier" in outcome.err
