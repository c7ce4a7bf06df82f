# SPDX-License-Identifier: Apache-2.0
"""The panel in the dashboard of the admin."""

from __future__ import annotations

import horizon
from django.utils.translation import gettext_lazy as _


class AcceleratorQuotas(horizon.Panel):
    """Shown if the service catalog has Cyborg; only admins have the dashboard."""

    name = _("Accelerator Quotas")
    slug = "accelerator_quotas"
    permissions = ("openstack.services.accelerator",)
