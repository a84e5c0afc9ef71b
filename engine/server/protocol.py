"""What clients may send: the OpenAI API's fields, with vLLM's additions where the engine knows more than OpenAI."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from engine.request import SamplingParams

Prompt = str | list[int]

# Fields that would change the answer if the engine knew them, and the values with which they do not.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "audio": (),
}


class StreamOptions(BaseModel):
    """How to stream.

    Attributes:
        include_usage: close with a chunk that has no choice but the usage.
    """

    include_usage: bool = False


class _GenerationRequest(BaseModel):
    """What both endpoints share; null means the default.

    Attributes:
        max_tokens: most output tokens.
        top_k: 0 or -1 keeps all tokens.
        stop: up to where the answer goes; the string itself is not sent.
        stop_token_ids, ignore_eos: as in `engine.request.SamplingParams`.
        priority: lower is more urgent, for the policies that know priorities.
        return_token_ids: add `token_ids` to each choice, and `prompt_token_ids` to those of a whole answer.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: list[str] = Field(default_factory=list)
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    priority: int = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_is_a_list(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _stop_holds_text(cls, value: list[str]) -> list[str]:
        if "" in value:
            raise ValueError("an empty stop string would end every answer before it begins")
        return value

    @field_validator("ignore_eos", "priority", "stream", "return_token_ids", mode="before")
    @classmethod
    def _null_is_off(cls, value: Any) -> Any:
        return 0 if value is None else value

    @model_validator(mode="after")
    def _refuse_what_would_be_ignored(self) -> "_GenerationRequest":
        for name, value in (self.model_extra or {}).items():
            neutral = _NEUTRAL.get(name)
            if neutral is not None and value is not None and value not in neutral:
                allowed = " or ".join(repr(choice) for choice in neutral)
                raise ValueError(
                    f"{name}={value!r} is not supported: leave it out" + (allowed and f", or give {allowed}")
                )
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream closes with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """The engine's form.

        Raises:
            UserError: a value out of range.
        """
        return SamplingParams(
            max_tokens=default_max_tokens if self.max_tokens is None else self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=0 if self.top_k in (None, -1) else self.top_k,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )


class CompletionRequest(_GenerationRequest):
    """Body of `POST /v1/completions`.

    Attributes:
        prompt: a text, a list of token ids, or a list of either; always the last once it is read.
    """

    prompt: list[Prompt]

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt_is_a_list(cls, value: Any) -> list[Prompt]:
        prompts = [value] if isinstance(value, str) or _are_token_ids(value) else value
        if not isinstance(prompts, list) or not prompts:
            raise ValueError("it is a text, a list of token ids, or a list of either")
        for prompt in prompts:
            if not isinstance(prompt, str) and not _are_token_ids(prompt):
                raise ValueError("it is a text, a list of token ids (whole numbers), or a list of either")
        return prompts


class ChatMessage(BaseModel):
    """One message; fields beyond these go to the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _parts_are_joined(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in value):
            raise ValueError("only parts of type text are supported")
        return "".join(str(part.get("text", "")) for part in value)


class ChatRequest(_GenerationRequest):
    """Body of `POST /v1/chat/completions`.

    Attributes:
        max_completion_tokens: the newer name of `max_tokens`; goes before it.
        chat_template_kwargs: variables for the chat template, such as `enable_thinking`.
    """

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _newer_name_wins(self) -> "ChatRequest":
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self


def _are_token_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
    )
