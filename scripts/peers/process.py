"""A peer's processes, which stand still while it is not their turn."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO

_END_TIMEOUT_S = 30


class PeerProcess:
    """A process in a session of its own, so that it can be stopped together with all that it starts.

    Some engines poll for work with all their threads, which would take the cores from whoever is being measured.

    Args:
        command, environment: what to start.
        log: where its error output goes, as `subprocess.Popen` takes it.

    Attributes:
        pipes: the process, with its input and output as text.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: IO[str] | int) -> None:
        self.pipes = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def pause(self) -> None:
        """Stop everything until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End everything."""
        self.resume()
        assert self.pipes.stdin is not None
        self.pipes.stdin.close()
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.pipes.wait(_END_TIMEOUT_S)
        self._signal(signal.SIGKILL)
        self.pipes.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pipes.pid, number)
