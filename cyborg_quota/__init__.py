# SPDX-License-Identifier: Apache-2.0
"""Quota for OpenStack Cyborg: counts the attached and reserved accelerators of projects and enforces limits.

conf = oslo_config.cfg.ConfigOpts()
cyborg_quota.conf.register_opts(conf)
conf(["--config-file", "/etc/cyborg_quota/cyborg_quota.conf"])
quotas = cyborg_quota.make_engine(conf)
with cyborg_quota.attachment(quotas, context, {"gpu": 1}, consumer=arq_uuid, group=instance_uuid):
    ...  # attach
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyborg_quota import conf, exceptions
from cyborg_quota.engine import QuotaEngine, attachment
from cyborg_quota.factory import make_engine
from cyborg_quota.types import (
    ANY,
    SELECT,
    UNLIMITED,
    Claim,
    Constraint,
    Headroom,
    Over,
    Reservation,
    Resource,
    Usage,
)
from cyborg_quota.types.capacity import AllocationItem, Inventory, InventoryItem, Provider, ResourceProvider

if TYPE_CHECKING:
    from cyborg_quota.driver import DbQuotaDriver

__version__ = "0.1.0"

__all__ = [
    "ANY",
    "SELECT",
    "UNLIMITED",
    "AllocationItem",
    "Claim",
    "Constraint",
    "DbQuotaDriver",
    "Headroom",
    "Inventory",
    "InventoryItem",
    "Over",
    "Provider",
    "QuotaEngine",
    "Reservation",
    "Resource",
    "ResourceProvider",
    "Usage",
    "attachment",
    "conf",
    "exceptions",
    "make_engine",
]


def __getattr__(name: str) -> object:
    """DbQuotaDriver is imported at its first use: the command line's help must not load a database."""
    if name == "DbQuotaDriver":
        from cyborg_quota.driver import DbQuotaDriver

        return DbQuotaDriver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
