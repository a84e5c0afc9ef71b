"""Workloads by preset, file and override."""

import pytest

from engine.errors import UserError
from workloads.spec import PRESETS, load_spec, spec_from_dict


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_poisson_and_read_back_from_their_dict(name):
    spec = load_spec(name)
    assert (spec.name, str(spec.arrival), spec.is_open_loop) == (name, "poisson", True)
    assert spec_from_dict(spec.to_dict()) == spec


def test_a_spec_knows_its_longest_and_its_mean_request():
    spec = load_spec("chat")
    assert (spec.max_request_tokens, spec.mean_prompt_tokens, spec.mean_output_tokens) == (2800, 1250, 500)


def test_overrides_win_over_the_preset():
    spec = load_spec("chat", ["prompt_tokens=uniform:32..192", "output_tokens=64", "arrival=gamma:burstiness=0.5"])
    assert spec.to_dict() == {
        "name": "chat",
        "arrival": "gamma:burstiness=0.5",
        "prompt_tokens": "uniform:32..192",
        "output_tokens": "fixed:64",
    }


def test_a_yaml_file_takes_text_numbers_and_mappings(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("prompt_tokens: {kind: uniform, low: 10, high: 20}\noutput_tokens: 8\narrival: closed:4\n")
    spec = load_spec(path, ["output_tokens=9"])
    assert spec.to_dict() == {
        "name": "mine",
        "arrival": "closed:concurrency=4",
        "prompt_tokens": "uniform:10..20",
        "output_tokens": "fixed:9",
    }
    assert not spec.is_open_loop
    assert spec_from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt_tokens: 5", "'output_tokens' is missing"),
        ("prompt_tokens: 5\noutput_tokens: 5\nrate: 3", "there is no 'rate'; its keys are name, arrival"),
        ("prompt_tokens: 5\noutput_tokens: [1, 2]", r"output_tokens=\[1, 2\] is not possible"),
        ("- 1", "holds no keys"),
        ("", "holds no keys"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_a_wrong_file_is_answered_in_one_readable_message(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_spec(path)


def test_an_unknown_workload_shows_the_presets():
    with pytest.raises(UserError, match="unknown workload 'chatt': choose chat, chat-small, summarize"):
        load_spec("chatt")


@pytest.mark.parametrize("override", ["prompt_tokens", "=5", "prompt_tokens=", "foo=5"])
def test_an_override_that_overrides_nothing_is_refused(override):
    with pytest.raises(UserError, match=r"overrides nothing|there is no 'foo'"):
        load_spec("chat", [override])
