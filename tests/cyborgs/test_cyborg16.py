# SPDX-License-Identifier: Apache-2.0
"""Cyborg 16, the oldest that is supported: it starts with quota, charges, refuses and releases."""

from __future__ import annotations

import uuid

from tests.cyborgs import quota


class TestCyborg16(quota.QuotaTestCase):
    version = "16.0.1"
    ledger = "cyborg16"  # the other Cyborg's conductor expires the reservations in its own ledger
    options = "max_unbound_requests = 3"

    def test_bind_refuse_release(self) -> None:
        self.bind_refuse_release()

    def test_failed_bind_and_unbound_requests(self) -> None:
        arqs = self.client.created(self.profile, 3)
        self.assertEqual(403, self.client.create(self.profile).status)
        self.rp = str(uuid.uuid4())
        self.refused(arqs[:1], 404)
        self.assert_agree()
