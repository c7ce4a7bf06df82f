# SPDX-License-Identifier: Apache-2.0
"""The panel in the dashboard of the admin."""

from __future__ import annotations

import horizon
from django.utils.translation import gettext_lazy as _


class AcceleratorQuotas(horizon.Panel):
    """Shown to admins if the service catalog has Cyborg.

    Horizon does not check at each page of a dashboard who may see the dashboard; so the panel has a rule of its own.
    """

    name = _("Accelerator Quotas")
    slug = "accelerator_quotas"
    permissions = ("openstack.services.accelerator",)
    policy_rules = (("identity", "admin_required"),)
