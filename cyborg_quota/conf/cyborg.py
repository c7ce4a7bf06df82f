# SPDX-License-Identifier: Apache-2.0
"""[cyborg]: which resources an accelerator is charged as, and the comparison of the ledger with Cyborg's records.

HOST_OPTS is set in the configuration of Cyborg: it names the configuration files of cyborg_quota.
"""

from __future__ import annotations

from oslo_config import cfg, types

GROUP = "cyborg"
HOST_GROUP = "cyborg_quota"


class Heal(types.String):
    """The type of [cyborg] reconcile_heal. Also accepts the Booleans of earlier releases."""

    def __init__(self) -> None:
        super().__init__(
            choices=[
                ("certain", "releases the charges of this Cyborg for requests that were deleted or unbound"),
                ("all", "also charges attached accelerators that are not charged, and corrects projects and amounts"),
                ("none", "repairs nothing and logs the discrepancies"),
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
        help="Seconds between two comparisons of the ledger with Cyborg's records by the conductor. 0: never.",
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
        help="The name that this Cyborg stores with its charges. If several Cyborgs share a ledger, each needs its own "
        "name: a reconciliation never changes the charges of other sources. If two Cyborgs with different databases "
        "use one name, neither is repaired. All hosts of a Cyborg use the same name.",
    ),
    cfg.IntOpt(
        "reconcile_grace",
        default=30,
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
        "redirect_nova",
        default=False,
        help="Whether Nova gets a redirect to an address that contains the reason, instead of 403, if a bind is "
        "refused, or a POST over max_unbound_requests. Then `openstack server show` names the project, the resource "
        "and the limit: Nova 34 shows its user the text of an exception of its HTTP client, but only the number of a "
        "status. The fault begins with `Could not communicate with Cyborg`, and nova-conductor logs a traceback for "
        "each refusal. Other clients get 403.",
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


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register this group on ``conf``."""
    conf.register_opts(OPTS, group=GROUP)


def register_host_opts(conf: cfg.ConfigOpts) -> None:
    """Register, on the configuration of Cyborg, the option that names the files of cyborg_quota."""
    conf.register_opts(HOST_OPTS, group=HOST_GROUP)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options of this group, for the oslo.config generator."""
    return [(GROUP, OPTS)]
