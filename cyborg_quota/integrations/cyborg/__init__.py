# SPDX-License-Identifier: Apache-2.0
"""Inside Cyborg: its conductor and API with quota, and its own records compared with the ledger."""
