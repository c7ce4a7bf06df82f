# SPDX-License-Identifier: Apache-2.0
"""Where limits come from. A limit driver answers with constraints; the ledger applies them."""
