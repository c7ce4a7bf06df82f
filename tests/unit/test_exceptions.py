# SPDX-License-Identifier: Apache-2.0
"""The errors keep their data when they are copied, or sent to another process."""

from __future__ import annotations

import copy
import pickle

from oslotest import base

from cyborg_quota import Over, exceptions
from cyborg_quota.exceptions import listed
from cyborg_quota.types.capacity import CapacityOver
from cyborg_quota.types.limits import Violation

ERRORS = (
    exceptions.OverQuota([Over("p", "gpu", "project", 1, 2, 0, 1)]),
    exceptions.NotAuthorized("expire"),
    exceptions.InvalidName("group", "a\n", "it must not hold control characters"),
    exceptions.UnknownResource(["vpu"], ["gpu"]),
    exceptions.InvalidDelta("gpu", 0, "it must not be zero"),
    exceptions.InvalidClaim("There is nothing to reserve."),
    exceptions.InvalidReservationExpiration(-1, "it must lie in the future"),
    exceptions.UsageOverflow("p", "gpu", 9),
    exceptions.MeterOverflow("p", "gpu", 9),
    exceptions.ReservationExpired("uuid"),
    exceptions.ReservationConflict("c", {"gpu": 1}, {"gpu": 2}),
    exceptions.DatabaseUnavailable("away", 6.0),
    exceptions.DatabaseBehind("a1c0", "b2d1"),
    exceptions.DatabaseForeign(["reservations"]),
    exceptions.DatabaseNotInitialized(),
)


class TestErrors(base.BaseTestCase):
    def test_copied_and_sent(self) -> None:
        for error in ERRORS:
            self.assertIsInstance(error, exceptions.QuotaError)
            for other in (
                copy.copy(error),
                copy.deepcopy(error),
                pickle.loads(pickle.dumps(error)),
            ):
                expected, found = ((type(one), str(one), vars(one)) for one in (error, other))
                self.assertEqual(expected, found)


class TestTexts(base.BaseTestCase):
    def test_many_reasons_of_a_refusal(self) -> None:
        """The message counts those that it does not name; a program has all of them."""
        for count, expected in ((1, ""), (10, ""), (11, "; and 1 more"), (999, "; and 989 more")):
            problems = [f"child {number} has more than parent" for number in range(count)]
            error = exceptions.LimitRefused([Violation(problem, None) for problem in problems])
            self.assertEqual(problems, error.problems)
            named = "; ".join(problems[:10])
            self.assertEqual(f"Not allowed: {named}{expected}. Nothing was changed.", str(error))

    def test_many_violations_or_projects(self) -> None:
        """A call with many claims may violate as many limits, and not fit at as many providers."""
        quota = exceptions.OverQuota([Over(f"p{number:03}", "gpu", "project", 1, 2, 0, 1) for number in range(500)])
        capacity = exceptions.OverCapacity([CapacityOver(f"n{number:03}", "gpu", 1, "full") for number in range(500)])
        names = exceptions.AmbiguousProject("admin", [(f"p{number}", f"d{number}") for number in range(500)])
        self.assertEqual(500, len(names.candidates))
        self.assertIn("p9 (domain d9); and 490 more. Give the id", str(names))
        for error, last in ((quota, "project p019"), (capacity, "provider n019")):
            self.assertRegex(str(error), f"{last}.*; and 480 more$")
            self.assertEqual((500, 20), (len(error.overs), str(error).count("; ")))

    def test_only_what_is_shown_becomes_text(self) -> None:
        """A call may have tens of thousands of claims."""

        class Counted:
            texts = 0

            def __str__(self) -> str:
                Counted.texts += 1
                return "x"

        self.assertEqual("x; x; and 998 more", listed([Counted() for _ in range(1000)], 2))
        self.assertEqual(2, Counted.texts)
        self.assertEqual(("", "a", "a; b"), (listed([], 2), listed(["a"], 2), listed("ab", 2)))

    def test_texts_that_rest_callers_get_name_no_command_of_the_host(self) -> None:
        kinds = [kind for kind in vars(exceptions).values() if isinstance(kind, type)]
        told = [
            kind
            for kind in kinds
            if issubclass(kind, exceptions.QuotaError)
            and (kind.conflict or issubclass(kind, (exceptions.NotFound, exceptions.InvalidRequest)))
        ]
        self.assertLess(20, len(told))
        self.assertEqual([], [kind.__name__ for kind in told if "cyborg-quota" in kind._text])
