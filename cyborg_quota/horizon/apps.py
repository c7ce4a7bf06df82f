# SPDX-License-Identifier: Apache-2.0
"""The configuration of the Django application."""

from __future__ import annotations

from django.apps import AppConfig


class QuotaPanelsConfig(AppConfig):
    """The label differs from the name of the package, because Horizon's own application has that label."""

    name = "cyborg_quota.horizon"
    label = "cyborg_quota_horizon"
