"""Runs a command with private servers."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from tests import needs
from tests.servers import KINDS, Server, running, templates
from tests.servers.base import STOP_TIMEOUT_SECONDS

_signals: list[int] = []
_holds: list[bool] = []


def run(command: Sequence[str], kinds: Sequence[type[Server]] = KINDS, *, durable: bool = False) -> int:
    """Run a command with the servers; returns its exit status, or 3 if a required server did not start.

    A server whose variable is already set belongs to the caller, and is used as it is.
    """
    wanted = [kind for kind in kinds if not os.environ.get(kind.variable)]
    began = time.monotonic()
    with running(wanted, durable=durable) as (started, errors):
        for error in errors:
            print(f"tests.servers: not started: {error}", file=sys.stderr)
        if errors and needs.required():
            return 3
        if started:
            names = " and ".join(server.name for server in started)
            seconds = time.monotonic() - began
            print(f"tests.servers: {names} started in {seconds:.1f} seconds", file=sys.stderr)
        urls = {server.variable: server.url for server in started}
        return _run_command(command, {**os.environ, templates.VARIABLE: str(templates.directory()), **urls})


def _run_command(command: Sequence[str], environ: Mapping[str, str]) -> int:
    # The exception of a signal is lost if it is raised in a destructor; an entry in the list is not.
    if _signals:
        return 128 + _signals[0]
    try:
        # An exception of a signal inside Popen would lose the started process.
        with _held():
            process = subprocess.Popen(command, env=environ)
    except OSError as error:
        print(f"tests.servers: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    try:
        if _signals:
            raise SystemExit(128 + _signals[0])
        status = process.wait()
    except SystemExit:
        # Ctrl-C in a terminal has reached the command as well; a signal to this process only has not.
        if signal.SIGINT not in _signals:
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        raise
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Only record the signals that arrive in the block, in _signals."""
    _holds.append(True)
    try:
        yield
    finally:
        _holds.clear()


def _exit(signum: int, _frame: object) -> None:
    _signals.append(signum)
    if not _holds:
        raise SystemExit(128 + signum)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("run", help="start the servers, run a command, and stop the servers")
    names = {kind.name: kind for kind in KINDS}
    verb.add_argument(
        "--only", action="append", choices=sorted(names), help="start this server; may be repeated (default: all)"
    )
    verb.add_argument("--durable", action="store_true", help="keep the data on disk, with the default durability")
    verb.add_argument("command", nargs="+", metavar="COMMAND")
    args = parser.parse_args(argv)
    for signum in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _exit)
    kinds = [names[name] for name in args.only or names]
    return run(args.command, kinds, durable=args.durable)
