# SPDX-License-Identifier: Apache-2.0
"""What keeps the ledger: the interface, and the driver that keeps it in a database."""
