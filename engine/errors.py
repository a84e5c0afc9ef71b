"""Errors that speak to the user. The command line prints their text and exits with code 2."""


class UserError(Exception):
    """Something the user gave cannot work.

    The message says what was wrong, the value that was given, and what would be right.
    """


class RequestRefused(UserError):
    """A request that can never run under the present settings (too long for the pool or the model)."""


class RequestShed(Exception):
    """A request that was turned away at the door: too many wait already.

    Attributes:
        limit: the option that says so, e.g. `max_queue_len`.
        retry_after_s: when it is worth trying again, in seconds, at least 1.
    """

    def __init__(self, text: str, limit: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.limit = limit
        self.retry_after_s = retry_after_s


class KVCacheTooSmall(UserError):
    """The KV cache left by the memory settings cannot hold one request of `max_model_len` tokens."""


class SwapSpaceTooSmall(UserError):
    """The swap space does not hold a single block of the KV cache."""


class RankFailed(Exception):
    """One of the processes that share a model failed or died, and the run with it."""


class ReplicaFailed(Exception):
    """One of several engines, each in a process of its own, failed or died, and the run with it."""


class OutOfDeviceMemory(Exception):
    """The device ran out of memory while executing. The trial failed, the process need not."""
