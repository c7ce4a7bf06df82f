# SPDX-License-Identifier: Apache-2.0
"""Starts processes of Cyborg's environment, through starter.py or directly."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.servers import machine


class ServiceError(Exception):
    """A service ended, or was not ready in time; the message ends with the last lines of its log."""


@dataclasses.dataclass(frozen=True)
class ProcessSettings:
    """The files to which output is appended, the environment variables, and the working directory of a process."""

    out: pathlib.Path
    err: pathlib.Path
    environment: Mapping[str, str]
    directory: pathlib.Path


def name_of(script: Sequence[str]) -> str:
    """Return the name of a script; with serve.py, that of the application it serves."""
    name = pathlib.Path(script[0]).name
    return script[1] if name == "serve.py" else name


class Process:
    """A started process, with the methods of subprocess.Popen that the tests use."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self._starter = starter
        self._status: int | None = None
        self.pid = pid
        self.peak_mib = 0.0
        """The maximum resident memory, once it has ended."""

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        if self._status is None and not machine.alive(self.pid):
            self._status, self.peak_mib = self._starter.reap(self.pid)
        return self._status

    def wait(self, timeout_seconds: float = 60.0) -> int:
        """Wait for its end, and return its exit status. Raises subprocess.TimeoutExpired."""
        machine.wait_until(lambda: self.poll() is not None, timeout_seconds)
        if self._status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_seconds)
        return self._status

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class Starter:
    """The process that runs starter.py. Its programs end with it, and it ends with the thread that made it.

    :param python: of Cyborg's environment.
    :param not_imported: packages that it does not import itself; its programs may.
    :param templates: {a program that is started often, see name_of: the modules that it loads, in order}
    """

    def __init__(
        self,
        python: pathlib.Path,
        workdir: pathlib.Path,
        not_imported: Sequence[str] = (),
        templates: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        command = [str(python), "-I", str(pathlib.Path(__file__).with_name("starter.py")), *not_imported]
        self._log = workdir / "starter.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                machine.ends_with_parent(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._lock = threading.Lock()
        self._templates = dict(templates or {})
        self._prepared: set[str] = set()

    def prepare(self, *programs: str) -> None:
        """Begin to load the modules of these programs, before the first of them is started."""
        for modules in (self._templates[program] for program in programs):
            if (name := ",".join(modules)) not in self._prepared:
                self._send({"template": name, "modules": modules})
                self._prepared.add(name)

    def start(self, command: Sequence[str], settings: ProcessSettings) -> Process:
        """Start a Python program.

        :param command: a script and its arguments; a "python" before the script is removed.
        """
        first, *rest = command
        script = rest if pathlib.Path(first).name == "python" else [first, *rest]
        order: dict[str, Any] = {
            "command": script,
            "out": str(settings.out),
            "err": str(settings.err),
            "environment": dict(settings.environment),
            "directory": str(settings.directory),
        }
        if (program := name_of(script)) in self._templates:
            self.prepare(program)
            order["template"] = ",".join(self._templates[program])
        return Process(self, self._send(order)["pid"])

    def reap(self, pid: int) -> tuple[int, float]:
        """Return the exit status of a process that has ended, and its maximum resident memory in MiB."""
        answer = self._send({"reap": pid})
        return answer["status"], answer["peak_kib"] / 1024

    def _send(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise ServiceError(f"the starter has ended:\n{self._log.read_text()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        """End it, and all its programs that still run."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class ProgramStarter:
    """Starts programs that are not written in Python, or that must not start as forks of a Python process."""

    def start(self, command: Sequence[str], settings: ProcessSettings) -> subprocess.Popen[bytes]:
        """Start a program in a session of its own. It ends with the thread that started it."""
        with settings.out.open("ab") as output, settings.err.open("ab") as errors:
            return subprocess.Popen(
                machine.ends_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=settings.environment,
                cwd=settings.directory,
                start_new_session=True,
            )
