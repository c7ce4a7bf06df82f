# SPDX-License-Identifier: Apache-2.0
"""The configuration options, and how they are read. There is no global configuration: callers pass one."""

from __future__ import annotations

from cyborg_quota.conf.opts import register_opts as register_opts
