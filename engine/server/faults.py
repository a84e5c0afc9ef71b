"""What can go wrong with a request once the server has it, beside the engine's own errors."""


class EngineFailed(Exception):
    """A step broke off while the request was in the engine; the text says why. The server goes on."""


class ServerUnavailable(Exception):
    """The server takes no requests: it is stopping, or its engine could not be repaired. The text says which."""


class QueueTimedOut(Exception):
    """The request waited longer than `queue_timeout` for its admission and was ended.

    Attributes:
        retry_after_s: when it is worth trying again, in seconds.
    """

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
