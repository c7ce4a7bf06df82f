# SPDX-License-Identifier: Apache-2.0
"""Deprecated: the former name of cyborg_quota.limits.models.base, kept for plug-ins."""

from __future__ import annotations

from cyborg_quota.limits.models.base import EnforcementModel, format_limit, subtree_constraints

Policy = EnforcementModel
"""The former name of EnforcementModel."""

along = subtree_constraints
shown = format_limit
"""The former names of these functions."""
