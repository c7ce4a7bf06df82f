# SPDX-License-Identifier: Apache-2.0
"""[limits]: the limit driver and its options."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "limits"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "driver",
        default="noop",
        help="The limit driver, a name in the entry points cyborg_quota.limits. noop: no limits, only counting. "
        "config: the limits of [limits] limits. database: limits and the project tree are stored in the tables of "
        "cyborg_quota. keystone: Keystone's unified limits.",
    ),
    cfg.StrOpt(
        "missing",
        default="refuse",
        choices=[
            ("refuse", "requests are refused with an error that says how to set a limit"),
            ("unlimited", "usage is counted, and requests are not refused"),
        ],
        help="How to treat a resource for which no limit is set (drivers database and keystone).",
    ),
    cfg.StrOpt(
        "enforcement_model",
        default="strict_hierarchy",
        help="The enforcement model: which limits may be set in the project tree, and which usage they limit (driver "
        "database). A name in the entry points cyborg_quota.policies. strict_hierarchy: the sum of the limits of the "
        "children must not exceed the limit of the parent. strict_two_level: two levels; no limit of a child exceeds "
        "that of its parent, but their sum may (overbooking). flat: each project is limited alone.",
    ),
    cfg.StrOpt(
        "child_initial_limit",
        default="0",
        help="The initial limit of a project that has a parent, used until one is set: a number, or default for the "
        "default of the resource (driver database).",
    ),
    cfg.StrOpt(
        "root_initial_limit",
        default="default",
        help="The initial limit of a root project: a number, or default (driver database).",
    ),
    cfg.BoolOpt(
        "require_reason",
        default=False,
        help="Whether each change of limits or of the project tree by an administrator needs a reason, which the "
        "history records (--reason).",
    ),
    cfg.IntOpt(
        "history_age",
        min=86400,
        help="Seconds for which the history, and bindings that ended, are kept; by default they are kept forever. "
        " cyborg-quota-expirer deletes older ones. The entries of an override are kept until it has ended that "
        "long ago.",
    ),
    cfg.Opt(
        "limits",
        type=cfg_types.Dict(value_type=cfg_types.Integer(min=-1)),
        default={},
        sample_default="fpga:5,gpu:10",
        help="The limit of each resource, the same for all projects (driver config): fpga:5,gpu:10. -1 means "
        "unlimited, 0 permits nothing, and a resource that is not listed is unlimited.",
    ),
]
