# SPDX-License-Identifier: Apache-2.0
"""Enables Project > Compute > Accelerator Quota."""

PANEL = "accelerator_quota"
PANEL_DASHBOARD = "project"
PANEL_GROUP = "compute"
ADD_PANEL = "cyborg_quota.horizon.panels.AcceleratorQuota"
