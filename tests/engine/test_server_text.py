"""Text while it comes in: whole characters, stop strings, the models' own tokenizers and chat templates."""

import json
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, Qwen2Tokenizer

from engine.errors import UserError
from engine.model.resolve import ModelSource, resolve_model
from engine.server.chat_template import ChatTemplate
from engine.server.gguf_vocabulary import GGUFVocabulary
from engine.server.text_stream import TextStream
from engine.server.tokenizer import TextTokenizer, load_tokenizer
from tests.engine.server_harness import ECHO, byte_level_folder

SENTENCES = (
    "Hello world",
    "The year 2024, and 12345.67!",
    "  two  spaces\n\n\tand a tab ",
    "don't, WE'LL, 's",
    "naïve café a\u0301, 日本語 🙂🙃",
    "<|im_start|>user\nHi<|im_end|>\n",
)


def decode_bytes(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode(errors="replace")


def decode_words(token_ids: Sequence[int]) -> str:
    """As SentencePiece does: a space before each word, but not at the beginning of a text."""
    return "".join(f" {chr(97 + token_id)}" for token_id in token_ids).removeprefix(" ")


def stream(
    decode: Callable[[Sequence[int]], str], chunks: Sequence[Sequence[int]], prompt: Sequence[int] = (), stop: Any = ()
) -> tuple[list[str], str | None]:
    """The parts of the text, and what stopped it."""
    text_stream = TextStream(decode, prompt, stop)
    parts = []
    for chunk in chunks:
        parts.append(text_stream.push(chunk))
        if text_stream.stopped_by is not None:
            break
    return [*parts, text_stream.finish()], text_stream.stopped_by


TEXTS = st.text(st.sampled_from("ab é日🙂"), max_size=30)


@given(TEXTS, st.integers(1, 5), st.integers(0, 3))
def test_parts_are_whole_characters_and_add_up_to_the_text(text: str, chunk: int, missing: int) -> None:
    encoded = text.encode()[: len(text.encode()) - missing]
    parts, _ = stream(decode_bytes, [encoded[i : i + chunk] for i in range(0, len(encoded), chunk)])
    assert "".join(parts) == encoded.decode(errors="ignore")


@given(TEXTS, st.text(st.sampled_from("ab é"), min_size=1, max_size=4))
def test_the_text_ends_where_the_stop_string_begins(text: str, stop: str) -> None:
    parts, stopped_by = stream(decode_bytes, [[byte] for byte in text.encode()], stop=[stop])
    assert "".join(parts) == text.split(stop)[0]
    assert stopped_by == (stop if stop in text else None)


@given(TEXTS, st.lists(st.text(st.sampled_from("ab é"), min_size=1, max_size=4), max_size=3), st.integers(1, 5))
def test_the_text_before_the_first_of_several_stop_strings_is_whole(text: str, stop: list[str], chunk: int) -> None:
    encoded = text.encode()
    chunks = [encoded[i : i + chunk] for i in range(0, len(encoded), chunk)]
    parts, stopped_by = stream(decode_bytes, chunks, stop=stop)
    sent = "".join(parts)
    assert not any(s in sent for s in stop)
    assert text.startswith(sent + (stopped_by or ""))
    assert stopped_by is not None or sent == text


def test_bytes_that_are_no_text_do_not_hold_the_rest_back_for_ever() -> None:
    parts, _ = stream(decode_bytes, [[0xFF]] * 20 + [[b] for b in b"end"])
    assert "".join(parts) == "\ufffd" * 20 + "end"
    assert any(parts[:20])


def test_the_first_token_keeps_its_space_after_a_prompt() -> None:
    assert stream(decode_words, [[1], [2]], prompt=[0])[0][:2] == [" b", " c"]
    assert stream(decode_words, [[1], [2]])[0][:2] == ["b", " c"]


def test_a_model_without_text_is_told_once() -> None:
    said: list[str] = []
    assert load_tokenizer(ECHO, said.append) is None
    assert said == ["echo has no tokenizer: prompts must be token ids"]


def loaded(source: ModelSource) -> TextTokenizer:
    tokenizer = load_tokenizer(source, pytest.fail)
    assert tokenizer is not None
    return tokenizer


def test_a_folder_without_tokenizer_json_goes_through_transformers(tmp_path: Path) -> None:
    source = byte_level_folder(tmp_path)
    expected = loaded(source).encode("grün")
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (tmp_path / "tokenizer.json").unlink()
    said: list[str] = []
    assert load_tokenizer(source, said.append) is None
    assert "no tokenizer.json" in said[0]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', encoding="utf-8")
    assert loaded(source).encode("grün") == expected


@pytest.mark.parametrize("place", ["config", "list", "file"])
def test_a_chat_template_is_found_wherever_a_folder_has_it(tmp_path: Path, place: str) -> None:
    source = byte_level_folder(tmp_path)
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}"
    config: dict[str, Any] = {"bos_token": "<", "eos_token": {"content": ">"}}
    if place == "file":
        (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        named = [{"name": "tools", "template": "no"}, {"name": "default", "template": template}]
        config["chat_template"] = template if place == "config" else named
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = loaded(source)
    assert tokenizer.decode(tokenizer.encode_chat([{"role": "user", "content": "hi"}], {})) == "<hi>True"


def test_a_damaged_tokenizer_is_told(tmp_path: Path) -> None:
    source = byte_level_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    said: list[str] = []
    assert load_tokenizer(source, said.append) is None
    assert "tokenizer.json cannot be read" in said[0]


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('roles must alternate') }}", "{{ ''.__class__.__mro__ }}", "{{ messages + 1 }}"]
)
def test_a_template_that_objects_or_reaches_out_is_an_error_of_the_request(template: str) -> None:
    with pytest.raises(UserError, match="does not take these messages"):
        ChatTemplate(template, {}).render([{"role": "user", "content": "x"}], {})


def test_a_template_that_does_not_compile_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be used"):
        ChatTemplate("{% for %}", {})


def write_gguf(path: Path, cut: str, kind: str = "gpt2", **options: Any) -> Path:
    """A file with a vocabulary of bytes, three merges, a control token, and no weights."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["1 2", "h i", "Ġ hi"]
    tokens = [*alphabet, *(m.replace(" ", "") for m in merges), "<|im_start|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_tokenizer_pre(cut)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1)
    for name, value in options.items():
        getattr(writer, name)(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("cut", "digits"),
    [("gpt-2", ["12", "3", "4"]), ("smollm", list("1234")), ("qwen2", list("1234")), ("llama-bpe", ["12", "3", "4"])],
)
def test_each_cut_joins_digits_as_its_model_does(tmp_path: Path, cut: str, digits: list[str]) -> None:
    vocabulary = GGUFVocabulary(write_gguf(tmp_path / "m.gguf", cut, add_add_bos_token=False))
    assert vocabulary.tokenizer.encode("1234").tokens == digits
    assert vocabulary.tokenizer.encode("hi hi").tokens == ["hi", "Ġhi"]
    for text in SENTENCES[:5]:
        expected = unicodedata.normalize("NFC", text) if cut == "qwen2" else text
        assert vocabulary.tokenizer.decode(vocabulary.tokenizer.encode(text).ids) == expected


def test_the_words_of_qwen_are_those_of_transformers(tmp_path: Path) -> None:
    ours = GGUFVocabulary(write_gguf(tmp_path / "m.gguf", "qwen2")).tokenizer.pre_tokenizer
    theirs = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    for text in SENTENCES:
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("cut", "wanted", "adds"), [("smollm", None, False), ("llama-bpe", None, True), ("qwen2", True, True)]
)
def test_a_first_token_is_added_where_the_model_wants_it(
    tmp_path: Path, cut: str, wanted: bool | None, adds: bool
) -> None:
    options: dict[str, Any] = {} if wanted is None else {"add_add_bos_token": wanted}
    vocabulary = GGUFVocabulary(write_gguf(tmp_path / "m.gguf", cut, **options))
    assert vocabulary.special_tokens == {"bos_token": "<|im_start|>"}
    assert vocabulary.tokenizer.encode("hi").tokens == ["<|im_start|>"] * adds + ["hi"]
    assert vocabulary.tokenizer.encode("hi", add_special_tokens=False).tokens == ["hi"]


@pytest.mark.parametrize(("kind", "cut"), [("llama", "default"), ("gpt2", "tekken")])
def test_another_kind_of_vocabulary_is_refused(tmp_path: Path, kind: str, cut: str) -> None:
    with pytest.raises(UserError, match="not supported; supported are gpt2 with gpt-2, smollm"):
        GGUFVocabulary(write_gguf(tmp_path / "m.gguf", cut, kind))


def test_the_real_vocabulary_agrees_with_transformers(smollm2: Path) -> None:
    ours = loaded(resolve_model(str(smollm2)))
    theirs = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for text in SENTENCES:
        assert ours.encode(text) == theirs(text).input_ids
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text).input_ids, skip_special_tokens=True)
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    prompt = str(theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    assert ours.encode_chat(messages, {}) == theirs(prompt, add_special_tokens=False).input_ids
