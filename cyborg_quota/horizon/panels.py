# SPDX-License-Identifier: Apache-2.0
"""The panels in the dashboards of a project and of the admin. ``urls``: the module that has their pages."""

from __future__ import annotations

import horizon
from django.utils.translation import gettext_lazy as _


class AcceleratorQuota(horizon.Panel):
    """Shown if the service catalog has Cyborg."""

    name = _("Accelerator Quota")
    slug = "accelerator_quota"
    permissions = ("openstack.services.accelerator",)
    urls = "project"


class AcceleratorQuotas(horizon.Panel):
    """Shown to admins if the service catalog has Cyborg.

    Horizon does not check at each page of a dashboard who may see the dashboard; so the panel has a rule of its own.
    """

    name = _("Accelerator Quotas")
    slug = "accelerator_quotas"
    permissions = ("openstack.services.accelerator",)
    urls = "admin"
    policy_rules = (("identity", "admin_required"),)
