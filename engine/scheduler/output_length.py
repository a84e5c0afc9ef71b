"""How many tokens a request will still produce, for policies that go by remaining work."""

from engine.request import Request

# Weight of the next request in the mean of the past.
_WEIGHT = 0.05


class OutputLength:
    """Expects what is known, and else what requests that were free to end have produced in the mean.

    A request that ignores end-of-sequence is known to go on to `max_tokens`.
    """

    def __init__(self) -> None:
        self._mean: float | None = None

    def observe(self, request: Request) -> None:
        """Take in a request that has ended by itself."""
        if not request.sampling.ignore_eos:
            produced = request.num_output_tokens
            self._mean = produced if self._mean is None else self._mean + _WEIGHT * (produced - self._mean)

    def expected(self, request: Request) -> int:
        """Output tokens to come, from 0 to what `max_tokens` leaves."""
        left = request.sampling.max_tokens - request.num_output_tokens
        if request.sampling.ignore_eos or self._mean is None:
            return left
        return min(left, max(0, round(self._mean) - request.num_output_tokens))
