# SPDX-License-Identifier: Apache-2.0
"""Enables Admin > System > Accelerator Quotas."""

PANEL = "accelerator_quotas"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "admin"
ADD_PANEL = "cyborg_quota.horizon.panels.AcceleratorQuotas"
