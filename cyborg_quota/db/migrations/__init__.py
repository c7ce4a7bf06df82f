# SPDX-License-Identifier: Apache-2.0
"""The alembic environment. ``cyborg_quota.db.schema`` runs it; no other module should."""
