# SPDX-License-Identifier: Apache-2.0
"""[limits]: where limits come from."""

from __future__ import annotations

from oslo_config import cfg
from oslo_config import types as cfg_types

GROUP = "limits"

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "driver",
        default="noop",
        help="Where limits come from: a name in the entry points cyborg_quota.limits. noop counts and refuses "
        "nothing; config takes [limits] limits; database keeps limits and the project tree in our own tables; "
        "keystone asks Keystone's unified limits.",
    ),
    cfg.StrOpt(
        "missing",
        default="refuse",
        choices=[
            ("refuse", "a request for it is refused with an error that says how to set one"),
            ("unlimited", "it is counted and never refused"),
        ],
        help="What becomes of a resource for which nobody has set any limit (drivers database and keystone).",
    ),
    cfg.StrOpt(
        "policy",
        default="strict_hierarchy",
        help="Which limits may be set along the tree, and what they bound, for the driver database: a name in the "
        "entry points cyborg_quota.policies. strict_hierarchy: the limits of the children never sum up to more than "
        "the parent's. strict_two_level: two levels, no child above its parent, overbooking allowed. flat: each "
        "project by itself.",
    ),
    cfg.StrOpt(
        "child_start",
        default="0",
        help="The limit of a project below another before anybody sets one: a number, or default for the resource's "
        "default (driver database).",
    ),
    cfg.StrOpt(
        "root_start",
        default="default",
        help="The same for a project below none.",
    ),
    cfg.IntOpt(
        "max_depth",
        default=8,
        min=1,
        max=32,
        help="How many levels a project tree may have (driver database).",
    ),
    cfg.Opt(
        "limits",
        type=cfg_types.Dict(value_type=cfg_types.Integer(min=-1)),
        default={},
        sample_default="fpga:5,gpu:10",
        help="The limit of each resource, the same for every project, for the driver config: fpga:5,gpu:10. "
        "-1 is unlimited, 0 allows nothing, and a resource that is not named is unlimited.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator."""
    return [(GROUP, OPTS)]
