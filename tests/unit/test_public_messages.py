# SPDX-License-Identifier: Apache-2.0
"""What a user of Cyborg's API reads of an error of the ledger."""

from __future__ import annotations

from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.cyborg.bind_tracker import public_message


class TestPublicMessages(base.BaseTestCase):
    def test_nothing_of_the_operator(self) -> None:
        """No host, service, region or command, also where the message in the log has them."""
        hint = "Register one in Keystone: openstack registered limit create --service 9dff64 --region RegionOne"
        errors = {
            "No limit is set for resource fpga.": exceptions.LimitNotSet("fpga", hint),
            "Accelerator request a1 already has a different charge.": exceptions.ReservationConflict(
                "a1", {"fpga": 1}, {"fpga": 2}
            ),
        }
        for expected, error in errors.items():
            self.assertEqual(expected, public_message(error))
            self.assertRegex(str(error), "--region|another provider")
        self.assertEqual("Too many.", public_message(exceptions.InvalidRequest("Too many.")))
