"""Reads a subunit stream; prints why tests were skipped, and which failed, with their tracebacks.

The last line has the totals. The exit status is 1 if a test failed, if none ran, or if the run ended with a status
other than 0.
"""

import argparse
import collections
import sys
from typing import Any

import subunit
import testtools

PASSED = ("success", "xfail")
TRACEBACK_LINES = 30
"""How many lines of each traceback are printed at the end. The first print of it is mixed with log lines."""


def read(stream: Any) -> list[dict[str, Any]]:
    """Return the tests of a subunit stream, each with its id, status and details."""
    tests: list[dict[str, Any]] = []
    result = testtools.StreamToDict(tests.append)
    result.startTestRun()
    # A test that did not finish is reported as `inprogress` when the run stops.
    subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    return [test for test in tests if test["id"] != "stdout" and test["status"] != "exists"]


def skip_reason(test: dict[str, Any]) -> str:
    detail = test["details"].get("reason")
    return detail.as_text().strip() if detail else "no reason given"


def traceback(test: dict[str, Any]) -> list[str]:
    """Return the ends of the tracebacks of a failed test: of the test, and of its clean-up if that failed too."""
    texts = [detail.as_text() for name, detail in test["details"].items() if name.startswith("traceback")]
    return [line for text in texts for line in text.splitlines()[-TRACEBACK_LINES:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--status", type=int, default=0, help="the exit status of the run")
    args = parser.parse_args()
    tests = read(sys.stdin.buffer)
    passed = [test for test in tests if test["status"] in PASSED]
    skipped = [test for test in tests if test["status"] == "skip"]
    failed = [test for test in tests if test not in passed and test not in skipped]
    for reason, count in sorted(collections.Counter(map(skip_reason, skipped)).items()):
        print(f"skipped ({count}): {reason}")
    for test in failed:
        print(f"failed ({test['status']}): {test['id']}", *traceback(test), sep="\n    ")
    failures = len(failed)
    if args.status and not failed:
        # If a worker crashed, the stream may not name all the tests that did not run.
        print(f"failed: the run, with status {args.status}")
        failures = 1
    print(f"{len(passed)} passed, {failures} failed, {len(skipped)} skipped")
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
