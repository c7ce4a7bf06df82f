# SPDX-License-Identifier: Apache-2.0
"""[cyborg]: how accelerators become resources, and how the ledger is compared with Cyborg's own records.

HOST_OPTS is the one option that stands in Cyborg's own configuration: where ours is.
"""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = "cyborg"
HOST_GROUP = "cyborg_quota"


class Heal(types.String):
    """What [cyborg] reconcile_heal may be. It was a Boolean once."""

    def __init__(self) -> None:
        super().__init__(
            choices=[
                ("certain", "releases this Cyborg's charges of requests that Cyborg no longer has, or has unbound"),
                ("all", "also charges what is attached and not charged, and corrects projects and amounts"),
                ("none", "repairs nothing: what differs is logged"),
            ]
        )

    def __call__(self, value: object) -> str:
        text = str(value).strip().lower()
        if text in ("true", "1", "on", "yes"):
            text = "all"
        elif text in ("false", "0", "off", "no"):
            text = "none"
        return str(super().__call__(text))


OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "resource_rule",
        default=[
            "FPGA: fpga",
            "GPU: gpu",
            "PGPU: gpu",
            "VGPU: vgpu",
            "CUSTOM_QAT: qat",
            "CUSTOM_NIC: nic",
            "CUSTOM_SSD: ssd",
            "CUSTOM_PCI: pci",
        ],
        help="What one accelerator is charged as, by the resource class and the required traits of its device profile "
        "group: `CLASS [TRAIT ...]: RESOURCE [RESOURCE ...]`. Each rule that matches counts, so that `PGPU: gpu` and "
        "`PGPU CUSTOM_GPU_A100: gpu.A100` charge an A100 to both, and either limit can refuse it. * stands for any "
        "characters of a class or trait. May be given several times; together they replace the default.",
    ),
    cfg.StrOpt(
        "unmapped",
        default="refuse",
        choices=[
            ("refuse", "such an accelerator cannot be bound, and the error names the class"),
            ("ignore", "it is bound and not counted"),
        ],
        help="What becomes of a resource class that no rule matches, or whose resources are not all in "
        "[quota] resources.",
    ),
    cfg.IntOpt(
        "bind_expire",
        default=600,
        min=3,
        help="How long the reservation of a bind lives, in seconds. It is extended as long as the bind runs; so this "
        "is how long a conductor's crash holds quota.",
    ),
    cfg.IntOpt(
        "reconcile_interval",
        default=3600,
        min=0,
        help="How often the conductor compares the ledger with Cyborg's records, in seconds. 0: never.",
    ),
    cfg.Opt(
        "reconcile_heal",
        type=Heal(),
        default="certain",
        help="What the conductor repairs when it compares the ledger with Cyborg's records. The value true means all, "
        "and false means none.",
    ),
    cfg.StrOpt(
        "source",
        default="cyborg",
        help="The name under which this Cyborg charges. Where several Cyborgs share a ledger each needs a name of its "
        "own: the charges of other sources are never changed. The same on all hosts of one Cyborg.",
    ),
    cfg.IntOpt(
        "reconcile_grace",
        default=30,
        min=0,
        help="How long a difference must last before it is one, in seconds: what is in flight settles meanwhile.",
    ),
    cfg.IntOpt(
        "reconcile_share",
        default=10,
        min=0,
        max=100,
        help="How much of the ledger one reconciliation may change, in percent of the accelerators compared. More "
        "asks a person for --force; up to ten changes never do.",
    ),
    cfg.IntOpt(
        "max_unbound_requests",
        default=-1,
        min=-1,
        help="How many accelerator requests that belong to no instance a project may have; a POST that would make more "
        "is refused with 403. -1: no limit. It protects Cyborg's table from a project that makes requests without end, "
        "and is not exact: POSTs that run at the same time may together pass it by what each of them makes. Nova makes "
        "the requests of a server before it binds them, so choose a number above what all servers that a project "
        "starts at the same time ask for. Each POST reads up to so many rows.",
    ),
    cfg.MultiStrOpt(
        "config_file",
        default=[],
        help="Cyborg's own configuration, for the commands that read its records. Default: where Cyborg itself looks, "
        "as /etc/cyborg/cyborg.conf. The conductor has read it already.",
    ),
]

HOST_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "config_file",
        default=[],
        help="In Cyborg's configuration: the files that hold cyborg_quota's. Default: cyborg_quota.conf in "
        "~/.cyborg_quota, ~, /etc/cyborg_quota or /etc.",
    ),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def register_host_opts(conf: cfg.ConfigOpts) -> None:
    """Register, on Cyborg's configuration, where ours is."""
    conf.register_opts(HOST_OPTS, group=HOST_GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """For the generator."""
    return [(GROUP, OPTS)]
