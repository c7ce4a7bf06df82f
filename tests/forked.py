# SPDX-License-Identifier: Apache-2.0
"""Runs a program in a fork of this process, which has loaded the libraries: a new interpreter takes a second for it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """The exit status and the output of a program."""

    status: int
    out: str
    err: str


def run(program: Callable[[], Any], *, stdout: int | None = None) -> Ended:
    """Call ``program`` in a fork, as the script of an entry point calls it.

    :param stdout: an open file; by default, the output is returned.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = _call(program, out.fileno() if stdout is None else stdout, err.fileno())
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return Ended(status, out.read().decode(), err.read().decode())


def start(do: Callable[[], object]) -> int:
    """Call ``do`` in a fork, which ends with the status 0, or with 1 after an error. Returns its process ID."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        do()
        status = 0
    finally:
        os._exit(status)


def wait(pid: int, seconds: float = 60.0) -> int | None:
    """Return the exit status of a fork, or minus the number of its signal; None if it had to be killed after a time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _call(program: Callable[[], Any], out: int, err: int) -> int:
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    logging.getLogger().handlers.clear()
    status: Any = 0
    try:
        status = program()
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # As the interpreter does at its end.
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)
