# SPDX-License-Identifier: Apache-2.0
"""Integration with Cyborg: its conductor and API with quota, and the comparison of its records with the ledger."""
