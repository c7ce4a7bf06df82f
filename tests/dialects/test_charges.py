# SPDX-License-Identifier: Apache-2.0
"""What a charge grants and refuses, and what it writes."""

from __future__ import annotations

import dataclasses
import traceback

from cyborg_quota import Constraint, Over, Usage, exceptions
from cyborg_quota.ledger.limit_source import PathLimits
from tests import base


class TestLimits(base.LedgerTestCase):
    """A request is granted, or refused with all the reasons."""

    def refused(self, deltas: dict[str, int], **named: object) -> exceptions.OverQuota:
        return self.assertRaises(exceptions.OverQuota, self.quotas.reserve, self.context, deltas, **named)

    def test_the_example_of_the_specification(self) -> None:
        self.limits.own[None, "fpga"] = 5
        self.quotas.commit(self.context, self.quotas.reserve(self.context, {"fpga": 3}))
        uuids = self.quotas.reserve(self.context, {"fpga": 2})
        self.assertEqual((3, 2), self.figures(resource="fpga"))
        error = self.refused({"fpga": 1})
        self.assertEqual(
            "Quota exceeded: project p1, resource fpga: limit 5, used 3, reserved 2, requested 1",
            str(error),
        )
        self.quotas.commit(self.context, uuids)
        self.assertEqual((5, 0), self.figures(resource="fpga"))

        error = self.refused({"fpga": 1})

        self.assertEqual([Over("p1", "fpga", "project", 5, 1, 5, 0)], error.overs)
        self.assertIn("limit 5, used 5, reserved 0, requested 1", str(error))

    def test_all_violations_are_named_and_sorted(self) -> None:
        """And no other limits; 0 is a limit. None of the resources is charged."""
        self.limits.own.update({(None, "gpu"): 1, (None, "fpga"): 0, (None, "gpu.A100"): 7, (None, "vpu"): 9})
        self.engine.register_resource("vpu")
        request = {"gpu.A100": 8, "gpu": 2, "fpga": 1, "vpu": 9}
        error = self.refused(request)
        named = [(over.resource, over.limit, over.requested) for over in error.overs]
        self.assertEqual([("fpga", 0, 1), ("gpu", 1, 2), ("gpu.A100", 7, 8)], named)
        for resource in ("fpga", "gpu", "gpu.A100"):
            self.assertIn(f"resource {resource}:", str(error))
        self.assertNotIn("_Refused", "".join(traceback.format_exception(error)), "an internal exception")
        checked = [dataclasses.replace(over, fits=None) for over in self.quotas.check(self.context, request)]
        self.assertEqual(list(map(str, error.overs)), list(map(str, checked)), "check also says what fits")
        self.assertEqual([], self.quotas.list_reservations(base.ADMIN))
        self.assertEqual(Usage(0, 0, 0), self.quotas.get_usages(self.context)["fpga"])

    def test_a_constraint_on_an_unrelated_project_is_an_error(self) -> None:
        self.limits.bounds = lambda states, resources: [  # type: ignore[method-assign]
            PathLimits([Constraint("p2", "gpu", 5)])
        ]
        self.assertRaises(exceptions.ConfigurationError, self.quotas.reserve, self.context, {"gpu": 1})
