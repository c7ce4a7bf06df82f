# SPDX-License-Identifier: Apache-2.0
"""The ledger of usage and reservations: the driver interface, and the driver that stores it in a database."""
