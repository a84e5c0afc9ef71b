"""Chat messages as the text that a model was trained on: the Jinja template that comes with a tokenizer."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import UserError


class ChatTemplate:
    """A compiled template. It runs in a sandbox, since it comes with the model's files.

    Args:
        source: the template, for the environment that Hugging Face's chat templates are written for.
        special_tokens: `bos_token`, `eos_token`, as far as there are any.

    Raises:
        UserError: it is no valid template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UserError(f"the model's chat template cannot be used: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt's text, up to where the assistant's answer begins.

        Args:
            messages: each with `role` and `content`.
            options: further variables of the template, such as `enable_thinking`.

        Raises:
            UserError: the template does not take these messages.
        """
        variables = {"add_generation_prompt": True, **self._special_tokens, **options}
        try:
            return self._template.render(messages=messages, **variables)
        except (TemplateError, TypeError) as error:
            raise UserError(f"the model's chat template does not take these messages: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter would escape for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(text: str) -> NoReturn:
    raise TemplateError(text)
