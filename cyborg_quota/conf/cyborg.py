# SPDX-License-Identifier: Apache-2.0
"""[cyborg]: which resources an accelerator is charged as, and the comparison of the ledger with Cyborg's records.

HOST_OPTS is set in the configuration of Cyborg: it names the configuration files of cyborg_quota.
"""

from __future__ import annotations

from oslo_config import cfg

GROUP = "cyborg"
HOST_GROUP = "cyborg_quota"


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
        help="The resources that an accelerator is charged as, by the resource class and the required traits of its "
        "device profile group: `CLASS [TRAIT ...]: RESOURCE [RESOURCE ...]`. All matching rules apply: `PGPU: gpu` and "
        "`PGPU CUSTOM_GPU_A100: gpu.A100` charge an A100 to both resources, and either limit can refuse it. * matches "
        "any characters in a class or trait. May be given several times; the given rules replace the default.",
    ),
    cfg.StrOpt(
        "unmapped",
        default="refuse",
        choices=[
            ("refuse", "the accelerator cannot be bound, and the error names the class"),
            ("ignore", "the accelerator is bound and not counted"),
        ],
        help="How to treat a resource class that no rule matches, or whose resources are not all in [quota] resources.",
    ),
    cfg.IntOpt(
        "bind_expire",
        default=600,
        min=3,
        help="The lifetime of the reservation of a bind, in seconds. It is extended while the bind runs. After a crash "
        "of the conductor, the quota is occupied for this time.",
    ),
    cfg.IntOpt(
        "reconcile_interval",
        default=3600,
        min=0,
        help="Seconds between two comparisons of all charges in the ledger with Cyborg's records by the conductor. 0: "
        "never, except at its start and after a failure.",
    ),
    cfg.IntOpt(
        "reconcile_seconds",
        default=15,
        min=1,
        help="Seconds between two comparisons of what changed in Cyborg lately, and of the reservations in flight, by "
        "the conductor. It reads the requests that were changed in the last minute.",
    ),
    cfg.BoolOpt(
        "reconcile_heal",
        default=True,
        help="Whether the conductor and the API repair the charges that differ from Cyborg's records: commit and "
        "charge what is attached, and release what is not. False: the conductor logs the differences, every "
        "reconcile_interval.",
    ),
    cfg.StrOpt(
        "source",
        help="The name that this Cyborg stores with its charges. Required: the name of its region. All hosts of a "
        "Cyborg use the same name, and each Cyborg on a ledger has its own: a repair releases the charges of its "
        "source that are not in this Cyborg's records, and never changes those of other sources.",
    ),
    cfg.IntOpt(
        "reconcile_grace",
        default=10,
        min=0,
        help="Seconds a discrepancy must persist before it is reported or repaired, so that running binds can finish.",
    ),
    cfg.IntOpt(
        "reconcile_share",
        default=10,
        min=0,
        max=100,
        help="The maximum share of the compared accelerators that one reconciliation may change, in percent. More "
        "changes require --force. Up to ten changes are always permitted.",
    ),
    cfg.IntOpt(
        "max_unbound_requests",
        default=1000,
        min=-1,
        help="The maximum number of accelerator requests without an instance in a project. A POST that would exceed it "
        "is refused with 403. -1: no limit. This protects Cyborg's table from a project that creates requests without "
        "end. It is not exact: concurrent POSTs may together exceed it by the number of requests they create. Nova "
        "creates the requests of a server before it binds them: choose a number above the sum for all servers that a "
        "project starts at the same time. Each POST reads up to this number of rows.",
    ),
    cfg.BoolOpt(
        "claim_capacity",
        default=False,
        help="Whether a bind also claims capacity, at the provider of the accelerator or else at its host. Enable it "
        "after a first `cyborg-quota capacity import`. A device whose provider and host are not imported is charged to "
        "the quota only.",
    ),
    cfg.MultiStrOpt(
        "config_file",
        default=[],
        help="The configuration files of Cyborg, for the commands that read its records. Default: the default files of "
        "Cyborg, such as /etc/cyborg/cyborg.conf. The conductor does not need it.",
    ),
]

HOST_OPTS: list[cfg.Opt] = [
    cfg.MultiStrOpt(
        "config_file",
        default=[],
        help="The configuration files of cyborg_quota; set in Cyborg's configuration. Default: cyborg_quota.conf in "
        "~/.cyborg_quota, ~, /etc/cyborg_quota or /etc.",
    ),
]


def register_host_opts(conf: cfg.ConfigOpts) -> None:
    """Register, on the configuration of Cyborg, the option that names the files of cyborg_quota."""
    conf.register_opts(HOST_OPTS, group=HOST_GROUP)
