# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the readers of traces and of limit documents, guided by coverage (atheris).

    python -m tests.security.fuzz_readers --seconds 300          both, half of the time each

atheris is not one of the tests' dependencies: ``pip install atheris``. If it is not installed, the program says so and
exits with 0. After a crash, its input is in the directory ``--findings``, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).parents[2]
READERS = ("trace", "document")

DOCUMENT = b"""defaults: {gpu: 10, fpga: -1}
projects:
- id: atlas
  limits: &std {gpu: 100}
  children:
  - {id: physics, limits: *std, children: [{id: higgs}]}
- {id: "a b", limits: {gpu: null}}
"""


def read_trace(data: bytes, path: pathlib.Path) -> None:
    """Any bytes give events in time order, or a TraceError of one line."""
    from cyborg_quota import validation
    from cyborg_quota.replay.traces import Trace, TraceError

    path.write_bytes(data)
    last = 0.0
    try:
        for event in Trace(str(path)):
            assert event.time >= last and 0 < abs(event.amount) < 2**31, event
            last = event.time
            for name in (event.consumer, event.project_id, event.resource):
                assert validation.check_name("name", name) == name
    except TraceError as error:
        assert str(error).isprintable() and len(str(error)) < 1000, ascii(str(error))


def read_document(data: bytes, _path: pathlib.Path) -> None:
    """Any bytes give a document that is the same after writing and reading it, or InvalidDocument of one line."""
    from cyborg_quota import exceptions
    from cyborg_quota.limits import document
    from cyborg_quota.limits.limit_tree import InitialLimits, LimitTree

    try:
        found = document.read(document.parse(data))
    except exceptions.InvalidDocument as error:
        assert str(error).isprintable() and len(str(error)) < 1000, ascii(str(error))
        return
    tree, _ = document.apply(LimitTree({}, {}, {}, InitialLimits()), found)
    again = document.read(document.parse(document.render(document.write(tree))))
    assert (again.parents, again.project_limits, again.defaults) == (tree.parents, tree.project_limits, tree.defaults)


def child(reader: str, options: list[str]) -> None:
    """Fuzz one reader in this process; never returns (libFuzzer ends it)."""
    import atheris

    with atheris.instrument_imports(include=["cyborg_quota", "yaml", "csv"]):
        pass

    path = pathlib.Path(tempfile.mkdtemp(prefix="cyborg-quota-fuzz-"), "trace.csv")
    read = read_trace if reader == "trace" else read_document
    atheris.Setup([sys.argv[0], *options], lambda data: read(data, path))
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="the total duration (default: 60)")
    parser.add_argument(
        "--findings", type=pathlib.Path, default=TOP / ".fuzz", help="the directory for inputs that cause a crash"
    )
    arguments = parser.parse_args()
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("fuzz_readers: atheris is not installed (pip install atheris); nothing was fuzzed")
        return 0
    status = 0
    for reader in READERS:
        corpus = arguments.findings / reader
        corpus.mkdir(parents=True, exist_ok=True)
        trace = TOP / "etc/cyborg_quota/traces/example.csv"
        (corpus / "seed").write_bytes(trace.read_bytes() if reader == "trace" else DOCUMENT)
        limits = [f"-max_total_time={max(1, arguments.seconds // 2)}", "-timeout=10", "-rss_limit_mb=2048"]
        options = [*limits, "-print_final_stats=1", f"-artifact_prefix={corpus}/crash-", str(corpus)]
        code = "import sys; from tests.security import fuzz_readers; fuzz_readers.child(sys.argv[1], sys.argv[2:])"
        ended = subprocess.run(
            [sys.executable, "-c", code, reader, *options], cwd=TOP, capture_output=True, text=True, check=False
        )
        runs = [line for line in ended.stderr.splitlines() if "number_of_executed_units" in line]
        print(f"{reader}: {' '.join(runs)}: {'no finding' if not ended.returncode else 'FAILED'}", flush=True)
        if ended.returncode:
            status = 1
            print(ended.stdout[-4000:], ended.stderr[-4000:], sep="\n", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
