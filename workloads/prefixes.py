"""Prompts that begin alike, as those of one system prompt do: what a prefix cache has to work with."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import UserError
from workloads.kinds import parse_kind, readable
from workloads.lengths import LENGTHS, Lengths
from workloads.streams import stream

if TYPE_CHECKING:
    import numpy as np

_BATCH = 256
# Each is kept for as long as a run takes.
MOST_PREFIXES = 10_000
_EXAMPLE = "{share: 0.6, tokens: uniform:400..800, count: 8}"


class SharedPrefix(BaseModel):
    """Prefixes that a part of the requests begin with. Lengths of prompts stay what they are.

    Attributes:
        share: of the requests that begin with one, above 0 and at most 1.
        tokens: distribution of the prefixes' own lengths, one draw for each.
        count: how many different prefixes there are; each is as likely as any other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(gt=0, le=1)
    tokens: Lengths
    count: int = Field(default=1, ge=1, le=MOST_PREFIXES)

    def to_dict(self) -> dict[str, Any]:
        """The prefixes as `read_shared_prefix` takes them."""
        return {"share": self.share, "tokens": str(self.tokens), "count": self.count}


def read_shared_prefix(value: object) -> SharedPrefix | None:
    """Read the `shared_prefix` of a workload, a mapping with the fields of `SharedPrefix`; None for none.

    Raises:
        UserError: not of that form, an unknown or missing field, or a value that cannot be.
    """
    if value is None or isinstance(value, SharedPrefix):
        return value
    if not isinstance(value, Mapping):
        raise UserError(f"shared_prefix={value!r} is not possible: write in a YAML file for example {_EXAMPLE}")
    fields = {str(key): field for key, field in value.items()}
    if "tokens" in fields:
        fields["tokens"] = parse_kind(fields["tokens"], LENGTHS, "shared_prefix.tokens")
    try:
        return SharedPrefix.model_validate(fields)
    except ValidationError as error:
        keys = ", ".join(SharedPrefix.model_fields)
        raise UserError(f"shared_prefix is not possible: {readable(error)}; its keys are {keys}") from None


class PrefixSource:
    """Puts the shared prefixes of a run at the head of its prompts, one request after the other.

    A prefix follows from the seed and its number; which request gets which, from the seed and the request's index. A
    larger share adds requests to those that have one, and takes none away.

    Args:
        seed: of the run; another seed has other prefixes.
        vocab_size: token ids lie below it.
    """

    def __init__(self, spec: SharedPrefix, seed: int, vocab_size: int) -> None:
        lengths = spec.tokens.draw(stream(seed, "prefix lengths"), spec.count).tolist()
        self._prefixes = [
            stream(seed, "prefix tokens", str(number)).randint(0, vocab_size, size=length, dtype="int32")
            for number, length in enumerate(lengths)
        ]
        self._numbers = _numbers(spec, seed)

    def place(self, prompt: "np.ndarray") -> int:
        """Begin the next request's prompt, int32 `[prompt_tokens]`, with its prefix, where it has one.

        The last token stays the request's own, and a prefix that is too long for the prompt is cut.

        Returns:
            How many tokens of the prompt are the prefix's.
        """
        number = next(self._numbers)
        if number is None:
            return 0
        prefix = self._prefixes[number][: len(prompt) - 1]
        prompt[: len(prefix)] = prefix
        return len(prefix)


def _numbers(spec: SharedPrefix, seed: int) -> Iterator[int | None]:
    """For each request the number of its prefix; None for those without."""
    rng = stream(seed, "prefixes")
    while True:
        for has_one, which in rng.random_sample((_BATCH, 2)).tolist():
            yield int(which * spec.count) if has_one < spec.share else None
