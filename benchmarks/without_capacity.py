# SPDX-License-Identifier: Apache-2.0
"""Measures what capacity costs a reserve that names no provider: the code before capacity and the present one, in turn.

python -m tests.servers run --durable --only mariadb --only postgresql -- python -m benchmarks.without_capacity

Both use one database, in one process each (reserve_side.py), one after the other in each round. The code before
capacity is that of a commit of this repository, which must contain its history. What else was added since is measured
too. (On SQLite, a reserve has had one more statement since then, for another reason: record 0022.)
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import pathlib
import statistics
import subprocess
import sys
import tarfile
import tempfile

from benchmarks import disk, overrides
from benchmarks.report import Figure, Report
from cyborg_quota.db import schema
from cyborg_quota.db.database import Database
from tests import fixtures

TOP = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = pathlib.Path(__file__).with_name("reserve_side.py")
BEFORE = "24aee281"
"""The last commit before capacity."""
MOST = 1.05
"""The processor time of the present code, as a multiple of that before."""
CASE = "reserve without a provider"


class SideProcess:
    """A process with the code of one tree."""

    def __init__(self, tree: pathlib.Path, label: str, url: str) -> None:
        command = [sys.executable, str(SCRIPT), str(tree), label]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ask(url)

    def ask(self, line: str) -> str:
        """Send a line, and return the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"{self._process.args!r} ended")
        return answer

    def close(self) -> None:
        self._process.communicate()


@dataclasses.dataclass(frozen=True)
class Slice:
    """The processor time of a reserve, in microseconds."""

    client: float
    server: float

    @property
    def both(self) -> float:
        return self.client + self.server


def take_slice(side: SideProcess, calls: int, pids: set[str]) -> Slice:
    before = overrides.server_seconds(pids)
    client = float(side.ask(f"reserve {calls}"))
    server = (overrides.server_seconds(pids) - before) / calls * 1e6
    side.ask("end")
    return Slice(client, server)


def run(report: Report, backend: str, trees: tuple[pathlib.Path, pathlib.Path], rounds: int, calls: int) -> None:
    """Measure one database."""
    url = disk.fresh_url(backend, "without_capacity")
    database = Database(fixtures.settings(url))
    schema.sync(database)
    old, new = sides = [SideProcess(tree, label, url) for tree, label in zip(trees, ("before", "now"), strict=True)]
    additional = int(new.ask("count")) - int(old.ask("count"))
    report.add(Figure(backend, CASE, "additional statements", additional, must=0, is_most=True))
    growth = float(new.ask(f"calls {calls}")) / float(old.ask(f"calls {calls}"))
    report.add(Figure(backend, CASE, "function calls of the client, before = 1", growth, must=MOST, is_most=True))
    pids = overrides.server_pids(database)
    pairs: list[tuple[Slice, Slice]] = []
    for turn in range(rounds):
        found = {id(side): take_slice(side, calls, pids) for side in (sides if turn % 2 else sides[::-1])}
        pairs.append((found[id(old)], found[id(new)]))
    for side in sides:
        side.close()
    database.close()
    for name, index in (("before", 0), ("now", 1)):
        value = statistics.median(pair[index].both for pair in pairs)
        report.add(Figure(backend, CASE, f"processor time {name}", value, " us", is_most=True))
    client = statistics.median(now.client / before.client for before, now in pairs)
    fastest = min(now.client for _, now in pairs) / min(before.client for before, _ in pairs)
    # (The server's time is counted in ticks of 10 ms: too coarse for the ratio of one round.)
    both = sum(now.both for _, now in pairs) / sum(before.both for before, _ in pairs)
    report.add(Figure(backend, CASE, "fastest round of the client, before = 1", fastest, is_most=True))
    report.add(Figure(backend, CASE, "client, before = 1", client, must=MOST, is_most=True))
    report.add(Figure(backend, CASE, "client and server, before = 1", both, must=MOST, is_most=True))


def extract(commit: str, directory: pathlib.Path) -> None:
    """Write the files of a commit into a directory."""
    archive = subprocess.run(["git", "archive", commit, "cyborg_quota"], cwd=TOP, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory, filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=300, help="the reserves of a round (default: 300)")
    parser.add_argument("--commit", default=BEFORE, help="the code to compare with (default: the last before capacity)")
    parser.add_argument("--on", choices=fixtures.BACKENDS, action="append", help="this database; may be repeated")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="cyborg-quota-") as directory:
        extract(arguments.commit, pathlib.Path(directory))
        for backend in arguments.on or ("mariadb", "postgresql"):
            if fixtures.missing_server(backend) is None:
                run(report, backend, (pathlib.Path(directory), TOP), arguments.rounds, arguments.calls)
    print(report.table())
    if arguments.json is not None:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
