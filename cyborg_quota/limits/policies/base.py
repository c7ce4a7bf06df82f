# SPDX-License-Identifier: Apache-2.0
"""Deprecated: the former name of cyborg_quota.limits.models.base, kept for plug-ins."""

from __future__ import annotations

from cyborg_quota.limits.models.base import EnforcementModel

Policy = EnforcementModel
"""The former name of EnforcementModel."""
