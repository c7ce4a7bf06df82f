# SPDX-License-Identifier: Apache-2.0
"""One process of the stack, which can be started, stopped, killed and restarted."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Container, Mapping, Sequence

from tests.cyborgs.client import call
from tests.cyborgs.starting import Process, ProcessSettings, ProgramStarter, ServiceError, Starter
from tests.servers import machine

__all__ = ["Service", "ServiceError", "WebSettings", "answering", "start_all", "web_service"]

START_TIMEOUT_SECONDS = 90.0
STOP_TIMEOUT_SECONDS = 20.0


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without a user's own cloud and without a proxy: all services are on loopback."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("OS_") and not name.lower().endswith("_proxy")
    }


class Service:
    """A command that runs in the foreground, with a log file.

    :param ready: called repeatedly with the log since the start; returns whether the service is ready.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        workdir: pathlib.Path,
        ready: Callable[[str], bool],
        environment: Mapping[str, str] | None = None,
        *,
        starter: Starter | ProgramStarter,
    ) -> None:
        self.name = name
        self._starter = starter
        self.command = list(command)
        self.log = workdir / f"{name}.log"
        self._ready = ready
        self._environment = dict(environment or {})
        self._process: Process | subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process ID of the started process; a conductor serves in a child of it."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """Return the IDs of all its processes."""
        return [self.pid, *machine.descendants(self.pid)]

    def start(self) -> None:
        """Start it if it does not run, and wait until it is ready."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the process, without waiting until it is ready."""
        if self.running:
            return
        self.log.touch()
        self._log_start = self.log.stat().st_size
        environment = {**_clean(os.environ), "HOME": str(self.log.parent), **self._environment}
        settings = ProcessSettings(self.log, self.log, environment, self.log.parent)
        self._process = self._starter.start(self.command, settings)

    def wait(self) -> None:
        """Wait until it is ready. Raises ServiceError."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self._ready(self.output()):
            if not self.running:
                raise ServiceError(f"{self.name} ended while starting:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"{self.name} is not ready:\n{self.tail()}")
            time.sleep(machine.POLL_SECONDS)

    def finish(self) -> None:
        """Run a command that ends without a signal to its end. Raises ServiceError."""
        self.launch()
        self.join()

    def join(self) -> None:
        """Wait for the end of a command that was launched. Raises ServiceError."""
        assert self._process is not None
        try:
            status = self._process.wait(START_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServiceError(f"{self.name} does not end:\n{self.tail()}") from None
        if status != 0:
            raise ServiceError(f"{self.name} ended with {status}:\n{self.tail()}")

    def wait_for(self, text: str) -> None:
        """Wait until it has logged this since its last start. Raises ServiceError."""
        machine.wait_until(lambda: text in self.output(), START_TIMEOUT_SECONDS)
        if text not in self.output():
            raise ServiceError(f"{self.name} does not say {text!r}:\n{self.tail()}")

    def output(self) -> str:
        """Return the log since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if that takes too long."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_SECONDS)
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL to all its processes: no handler runs, and nothing is released."""
        if self._process is not None:
            pids = self.pids
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            machine.wait_until(lambda: not any(map(machine.alive, pids)), STOP_TIMEOUT_SECONDS)
            self._process = None

    def pause(self) -> None:
        """Suspend its processes, which keep their ports and connections, and do not answer; see resume()."""
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        machine.wait_until(lambda: all(map(machine.stopped, self.pids)), STOP_TIMEOUT_SECONDS)

    def resume(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)


def start_all(*services: Service) -> None:
    """Start them concurrently."""
    for service in services:
        service.launch()
    for service in services:
        service.wait()


@dataclasses.dataclass(frozen=True)
class WebSettings:
    """The directory of the programs, that of the log files, and the environment variables of a WSGI application.

    ``ready``: the statuses of GET / that show that it is ready.
    """

    programs: pathlib.Path
    workdir: pathlib.Path
    environment: Mapping[str, str]
    ready: Container[int] = (200,)


def web_service(
    name: str,
    application: str,
    port: int,
    threads: int,
    arguments: Sequence[str] = (),
    *,
    settings: WebSettings,
    starter: Starter,
) -> Service:
    """Serve the WSGI application MODULE:NAME on a port of 127.0.0.1."""
    serve = str(pathlib.Path(__file__).with_name("serve.py"))
    command = [str(settings.programs / "python"), serve, application, str(port), str(threads), *arguments]
    ready = answering(f"http://127.0.0.1:{port}/", settings.ready)
    return Service(name, command, settings.workdir, ready, settings.environment, starter=starter)


def answering(url: str, statuses: Container[int] = (200,)) -> Callable[[str], bool]:
    """Return a function for ``ready``: whether the service answers a GET of this URL with one of these statuses."""

    def is_ready(_log: str) -> bool:
        with contextlib.suppress(OSError):
            return call(url, "GET", "").status in statuses
        return False

    return is_ready
