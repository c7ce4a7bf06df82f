# SPDX-License-Identifier: Apache-2.0
"""Accelerator-hours: what projects have used, by month, and budgets of it."""
