"""Workloads of several classes: how they are written, and the stream of requests that they make."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import UserError
from workloads.plan import RequestPlan, make_plan
from workloads.spec import WorkloadSpec, load_spec, spec_from_dict

INTERACTIVE = {"share": 3, "prompt_tokens": "uniform:16..64", "output_tokens": "uniform:8..24"}
BATCH = {"share": 1, "priority": 1, "prompt_tokens": "uniform:256..768", "output_tokens": "uniform:32..96"}


def spec_of(**changes: Any) -> WorkloadSpec:
    return spec_from_dict({"name": "two", "classes": {"interactive": INTERACTIVE, "batch": BATCH}} | changes)


def first(spec: WorkloadSpec, count: int = 400, seed: int = 7, rate: float = 5.0) -> list[RequestPlan]:
    plan = make_plan(spec, rate=rate, seed=seed, vocab_size=1000, warmup_s=1.0, window_s=4.0)
    return list(islice(plan, count))


def of_class(requests: list[RequestPlan], name: str) -> list[tuple[int, int]]:
    return [(len(r.prompt), r.max_tokens) for r in requests if r.class_name == name]


def test_classes_are_read_from_a_yaml_file_and_written_as_they_are_read(tmp_path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "retries: 2\n"
        "classes:\n"
        "  interactive: {share: 3, prompt_tokens: uniform:16..64, output_tokens: 20}\n"
        "  2: {share: 0.5, priority: -1, prompt_tokens: {kind: uniform, low: 256, high: 768}, output_tokens: 30}\n"
    )
    spec = load_spec(path)
    assert spec.to_dict() == {
        "name": "two",
        "arrival": "poisson",
        "classes": {
            "interactive": {
                "share": 3.0, "priority": 0, "prompt_tokens": "uniform:16..64", "output_tokens": "fixed:20",
            },
            "2": {"share": 0.5, "priority": -1, "prompt_tokens": "uniform:256..768", "output_tokens": "fixed:30"},
        },
        "retries": 2,
    }  # fmt: skip
    assert spec_from_dict(spec.to_dict()) == spec


def test_a_workload_without_classes_is_written_without_them() -> None:
    assert set(load_spec("chat").to_dict()) == {"name", "arrival", "prompt_tokens", "output_tokens"}
    assert load_spec("chat", ["retries=3"]).to_dict()["retries"] == 3
    assert list(load_spec("chat").request_classes) == ["all"]


def test_lengths_of_a_workload_are_those_of_its_classes_by_share() -> None:
    spec = spec_of()
    assert spec.max_request_tokens == 768 + 96
    assert spec.mean_prompt_tokens == 0.75 * 40 + 0.25 * 512
    assert spec.mean_output_tokens == 0.75 * 16 + 0.25 * 64
    longest = spec_of(classes={"a": INTERACTIVE | {"output_tokens": 5000}, "b": BATCH})
    assert longest.max_request_tokens == 64 + 5000


@pytest.mark.parametrize(("name", "longest"), [("mixed", 8400), ("mixed-small", 864)])
def test_the_mixed_presets_have_one_long_request_in_ten_that_can_wait(name: str, longest: int) -> None:
    spec = load_spec(name)
    assert spec.classes is not None
    assert {n: (c.share, c.priority) for n, c in spec.classes.items()} == {"interactive": (0.9, 0), "batch": (0.1, 1)}
    assert spec.max_request_tokens == longest


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_tokens": 5}, "give either classes or prompt_tokens and output_tokens"),
        ({"prompt_tokens": 5, "output_tokens": 5}, "give either classes or prompt_tokens and output_tokens"),
        ({"classes": {}}, "classes={} is not possible: map each class's name to {share: 0.9"),
        ({"classes": "fast"}, "classes='fast' is not possible"),
        ({"classes": {"a": 5}}, "classes.a=5 is not possible: write for example {share: 0.9"),
        ({"classes": {"a": BATCH | {"share": 0}}}, "classes.a is not possible: share=0 is not possible"),
        ({"classes": {"a": BATCH | {"share": float("nan")}}}, "classes.a is not possible: share=nan"),
        ({"classes": {"a": BATCH | {"priority": 0.5}}}, "classes.a is not possible: priority=0.5"),
        ({"classes": {"a": BATCH | {"rate": 5}}}, "there is no 'rate'; its keys are share, priority, prompt_tokens"),
        ({"classes": {"a": without(BATCH, "share")}}, "classes.a is not possible: 'share' is missing"),
        ({"classes": {"a": without(BATCH, "output_tokens")}}, "classes.a is not possible: 'output_tokens' is missing"),
        ({"classes": {"a": BATCH | {"prompt_tokens": "uniform:9..5"}}}, "classes.a.prompt_tokens='uniform:9..5'"),
        ({"retries": -1}, "retries=-1 is not possible"),
        ({"retries": "often"}, "retries='often' is not possible"),
    ],
)
def test_classes_that_cannot_be_are_answered_in_one_readable_message(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        spec_of(**changes)
    assert message in str(caught.value)


def test_a_workload_without_lengths_and_without_classes_says_what_is_missing() -> None:
    with pytest.raises(UserError, match="'prompt_tokens' and 'output_tokens' are missing, and there are no classes"):
        spec_from_dict({"name": "none"})


@pytest.mark.parametrize("key", ["prompt_tokens", "output_tokens"])
def test_lengths_cannot_be_overridden_where_classes_have_their_own(key: str) -> None:
    message = rf"{key}=64 is not possible with this workload: each of its classes \(interactive, batch\) has lengths"
    with pytest.raises(UserError, match=message):
        load_spec("mixed", ["arrival=constant", f"{key}=64"])


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("chat", [(984, 345), (1994, 327), (1989, 798), (1257, 782), (1000, 382), (1289, 300)]),
        ("chat-small", [(83, 27), (192, 26), (191, 64), (113, 63), (85, 30), (116, 24)]),
        ("summarize", [(4612, 110), (7978, 105), (7963, 256), (5523, 251), (4666, 122), (5630, 96)]),
    ],
)
def test_workloads_without_classes_have_the_requests_they_had_before_there_were_classes(
    name: str, lengths: list[tuple[int, int]]
) -> None:
    requests = first(load_spec(name), 6, seed=11)
    assert [(len(r.prompt), r.max_tokens) for r in requests] == lengths
    assert [r.prompt_token_ids[:2] for r in requests[:1]] == [[524, 743]]
    assert {(r.class_name, r.priority) for r in requests} == {("all", 0)}


def test_a_seed_gives_these_very_requests_of_two_classes_on_every_machine() -> None:
    requests = first(spec_of(), 6)
    assert [(r.class_name, r.priority, len(r.prompt), r.max_tokens) for r in requests] == [
        ("interactive", 0, 45, 24),
        ("batch", 1, 521, 33),
        ("interactive", 0, 41, 20),
        ("batch", 1, 768, 49),
        ("interactive", 0, 61, 11),
        ("interactive", 0, 46, 11),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_requests_are_of_their_class_and_classes_come_by_share(seed: int) -> None:
    requests = first(spec_of(), 4000, seed=seed)
    counts = Counter((r.class_name, r.priority) for r in requests)
    assert set(counts) == {("interactive", 0), ("batch", 1)}
    assert counts["batch", 1] / 4000 == pytest.approx(0.25, abs=0.03)
    assert all(16 <= prompt <= 64 and 8 <= output <= 24 for prompt, output in of_class(requests, "interactive"))
    assert all(256 <= prompt <= 768 and 32 <= output <= 96 for prompt, output in of_class(requests, "batch"))


@given(seed=st.integers(0, 2**63), rates=st.tuples(st.floats(0.1, 50), st.floats(0.1, 50)))
def test_request_i_is_of_the_same_class_at_every_rate(seed: int, rates: tuple[float, float]) -> None:
    slow, fast = (first(spec_of(), 40, seed, rate) for rate in rates)
    assert [(r.class_name, r.prompt_token_ids, r.max_tokens) for r in slow] == [
        (r.class_name, r.prompt_token_ids, r.max_tokens) for r in fast
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_lengths_of_a_class_are_its_own_whatever_the_others_are(seed: int) -> None:
    other = {"interactive": INTERACTIVE, "batch": BATCH | {"prompt_tokens": "fixed:900", "share": 0.2}}
    one, two = (of_class(first(spec, seed=seed), "interactive") for spec in (spec_of(), spec_of(classes=other)))
    shared = min(len(one), len(two))
    assert shared > 200
    assert one[:shared] == two[:shared]


def test_the_order_in_which_classes_are_written_changes_nothing() -> None:
    turned = spec_of(classes={"batch": BATCH, "interactive": INTERACTIVE})
    assert turned == spec_of()
    rows = [[(r.class_name, r.prompt_token_ids, r.max_tokens) for r in first(spec)] for spec in (turned, spec_of())]
    assert rows[0] == rows[1]
