"""Runs a command with private servers."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests import needs
from tests.servers import KINDS, Server, machine, running, templates
from tests.servers.base import STOP_TIMEOUT_SECONDS


def run(command: Sequence[str], kinds: Sequence[type[Server]] = KINDS, *, durable: bool = False) -> int:
    """Run a command with the servers; returns its exit status, or 3 if a required server did not start.

    A server whose variable is already set belongs to the caller, and is used as it is.
    """
    wanted = [kind for kind in kinds if not os.environ.get(kind.variable)]
    with running(wanted, durable=durable) as (started, errors):
        for error in errors:
            print(f"tests.servers: not started: {error}", file=sys.stderr)
        if errors and needs.required():
            return 3
        if started:
            names = " and ".join(server.name for server in started)
            print(f"tests.servers: started {names}", file=sys.stderr)
        urls = {server.variable: server.url for server in started}
        return _run_command(command, {**os.environ, templates.VARIABLE: str(templates.directory()), **urls})


def _run_command(command: Sequence[str], environ: Mapping[str, str]) -> int:
    # A process that is lost because a signal arrives inside Popen ends with this one.
    process = subprocess.Popen(machine.ends_with_parent(command), env=environ)
    try:
        status = process.wait()
    except SystemExit as stop:
        # Ctrl-C in a terminal has reached the command as well; a signal to this process only has not.
        if stop.code != 128 + signal.SIGINT:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_SECONDS)
        process.kill()
        raise
    return status if status >= 0 else 128 - status


def _exit(signum: int, _frame: object) -> None:
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
