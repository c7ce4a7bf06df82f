# SPDX-License-Identifier: Apache-2.0
"""Limit drivers: they return the constraints of a charge, which the ledger enforces."""
