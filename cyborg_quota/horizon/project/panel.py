# SPDX-License-Identifier: Apache-2.0
"""The panel in the dashboard of a project."""

from __future__ import annotations

import horizon
from django.utils.translation import gettext_lazy as _


class AcceleratorQuota(horizon.Panel):
    """Shown if the service catalog has Cyborg."""

    name = _("Accelerator Quota")
    slug = "accelerator_quota"
    permissions = ("openstack.services.accelerator",)
