"""A peer in an environment of its own, behind a pipe: a line with a number of jobs in, one with their tokens out."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.errors import UserError
from scripts.peers.process import PeerProcess
from scripts.peers.workload import Job


class WorkerPeer:
    """A contender whose work is done by another process, which loads its model once.

    Args:
        name: for messages.
        command: starts the worker; `{jobs}` in it is replaced by the file of the jobs.
        jobs: all jobs that will be run.
        environment: of the process.

    Raises:
        UserError: the worker does not start.
    """

    def __init__(self, name: str, command: Sequence[str], jobs: list[Job], environment: dict[str, str]) -> None:
        self._name = name
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        jobs_file = Path(self._folder.name) / "jobs.json"
        jobs_file.write_text(json.dumps([[job.prompt, job.output_tokens] for job in jobs]))
        self._log = (Path(self._folder.name) / "log").open("w+")
        command = [part.replace("{jobs}", str(jobs_file)) for part in command]
        self._process = PeerProcess(command, environment, self._log)
        self._answer("ready")
        self._process.pause()

    def run(self, jobs: list[Job]) -> None:
        """Run the first `len(jobs)` of the jobs given at the start.

        Raises:
            UserError: the worker failed, or answered with another number of tokens than was asked for.
        """
        self._process.resume()
        stdin = self._process.pipes.stdin
        assert stdin is not None
        stdin.write(f"{len(jobs)}\n")
        stdin.flush()
        self._answer(str(sum(job.output_tokens for job in jobs)))
        self._process.pause()

    def close(self) -> None:
        """End the worker."""
        self._process.close()
        self._log.close()
        self._folder.cleanup()

    def _answer(self, expected: str) -> None:
        """Read up to the expected line. Libraries print lines of their own, which hold no single number."""
        stdout = self._process.pipes.stdout
        assert stdout is not None
        for line in stdout:
            if line.strip() == expected:
                return
            if line.strip().isdecimal():
                raise UserError(f"{self._name} answered {line.strip()} tokens where {expected} were asked for")
        self._log.seek(0)
        said = self._log.read().strip().splitlines()
        raise UserError(f"{self._name} ended: {said[-1] if said else 'it did not say why'}")
