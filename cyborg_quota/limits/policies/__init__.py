# SPDX-License-Identifier: Apache-2.0
"""Deprecated: the former name of cyborg_quota.limits.models, kept for plug-ins."""

from __future__ import annotations

import warnings

from cyborg_quota.limits.models import base

__all__ = ["base"]

warnings.warn(
    "cyborg_quota.limits.policies is deprecated: import cyborg_quota.limits.models instead.",
    DeprecationWarning,
    stacklevel=2,
)
