"""Attention backends by name. A new one is one file and one line here."""

from collections.abc import Callable

from engine.attention.base import AttentionBackend, AttentionSpec
from engine.attention.reference import ReferenceAttention
from engine.errors import UserError

ATTENTION_BACKENDS: dict[str, Callable[[AttentionSpec], AttentionBackend]] = {
    "reference": ReferenceAttention,
}


def make_attention(name: str, spec: AttentionSpec) -> AttentionBackend:
    """The backend called `name`.

    Raises:
        UserError: there is none of that name.
    """
    if name not in ATTENTION_BACKENDS:
        raise UserError(f"attention backend {name!r} does not exist: choose one of {', '.join(ATTENTION_BACKENDS)}")
    return ATTENTION_BACKENDS[name](spec)
