# SPDX-License-Identifier: Apache-2.0
"""The panel of a project while Cyborg attaches accelerators: real Horizon, Keystone and Cyborg, with one endpoint."""

from __future__ import annotations

from tests.cyborgs import keystone
from tests.horizon import base, stack, test_panels
from tests.servers import sharing


class TestAttach(keystone.KeystoneTestCase):
    def test_a_project_reaches_its_limit(self) -> None:
        """Bob attaches through Cyborg's API, up to the limit; the panel, which asks the same endpoint, shows it."""
        services = sharing.need(self, "Horizon", stack.running)
        bob, atlas = services.bob, services.projects["atlas"]
        self.set_limit(2, project_id=atlas)
        session = self.keystone.session(bob.name, bob.password, project_id=atlas)
        client = self.client_with(str(session.get_token()), atlas)
        arqs = client.created(self.profile, 3)
        page = base.log_in(self, services, bob, test_panels.PROJECT)
        self.assertIn("fpga 0 of 2 in use; 2 fit", base.text(page))
        for arq, expected in zip(arqs, ("fpga 1 of 2 in use; 1 fits", "fpga 2 of 2 in use; 0 fit"), strict=False):
            self.bind([arq], client)
            page.reload()
            self.assertIn(expected, base.text(page))
        self.assertIn("limit 2", self.refused(arqs[2:], client=client))
        self.assertEqual(204, client.delete(arqs[:1]).status)
        page.reload()
        self.assertIn("fpga 1 of 2 in use; 1 fits", base.text(page))
        self.assert_agree()
