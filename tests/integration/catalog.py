# SPDX-License-Identifier: Apache-2.0
"""The service of Cyborg in the catalog of the shared Keystone."""

from __future__ import annotations

import fixtures as fx

from tests.integration.server import Keystone


class OnlyAccelerator(fx.Fixture):
    """While it is set up, the catalog has one service of the type accelerator, at ``url``.

    Those of other tests stay disabled: each test makes its own, and to enable them again takes longer than a test.
    """

    def __init__(self, keystone: Keystone, url: str) -> None:
        super().__init__()
        self._keystone = keystone
        self._url = url

    def _setUp(self) -> None:
        admin = self._keystone.admin
        for service in admin.get("/services", params={"type": "accelerator"}).json()["services"]:
            if service["enabled"]:
                admin.patch(f"/services/{service['id']}", json={"service": {"enabled": False}})
        service_id, endpoint_id = self._keystone.create_service()
        self.addCleanup(admin.delete, f"/services/{service_id}")
        admin.patch(f"/endpoints/{endpoint_id}", json={"endpoint": {"url": self._url}})
