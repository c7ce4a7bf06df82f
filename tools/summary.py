"""Read a subunit stream, say why tests were skipped and which failed; the totals are the last line.

Exits 1 when a test failed, when none ran, and when the run itself ended with another status than 0.
"""

import argparse
import collections
import sys
from typing import Any

import subunit
import testtools

PASSED = ("success", "xfail")


def read(stream: Any) -> list[dict[str, Any]]:
    """The tests of a subunit stream, each with its id, status and details."""
    tests: list[dict[str, Any]] = []
    result = testtools.StreamToDict(tests.append)
    result.startTestRun()
    # A test that was never finished is given as `inprogress` when the run stops.
    subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    return [test for test in tests if test["id"] != "stdout" and test["status"] != "exists"]


def skip_reason(test: dict[str, Any]) -> str:
    detail = test["details"].get("reason")
    return detail.as_text().strip() if detail else "no reason given"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--status", type=int, default=0, help="what the run itself ended with")
    args = parser.parse_args()
    tests = read(sys.stdin.buffer)
    passed = [test for test in tests if test["status"] in PASSED]
    skipped = [test for test in tests if test["status"] == "skip"]
    failed = [test for test in tests if test not in passed and test not in skipped]
    for reason, count in sorted(collections.Counter(map(skip_reason, skipped)).items()):
        print(f"skipped ({count}): {reason}")
    for test in failed:
        print(f"failed ({test['status']}): {test['id']}")
    failures = len(failed)
    if args.status and not failed:
        # A worker that died may take tests along that the stream does not even name.
        print(f"failed: the run itself, with status {args.status}")
        failures = 1
    print(f"{len(passed)} passed, {failures} failed, {len(skipped)} skipped")
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
