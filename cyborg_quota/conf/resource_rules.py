# SPDX-License-Identifier: Apache-2.0
"""Map a device profile group to the resources that one of its accelerators is charged as. Pure: no I/O, no Cyborg.

A group is Cyborg's: {"resources:PGPU": "2", "trait:CUSTOM_GPU_A100": "required", "accel:bitstream_id": ...}. Cyborg
makes one ARQ for each unit that its ``resources:`` keys ask for.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from oslo_config import cfg

from cyborg_quota import exceptions, validation

RESOURCES_PREFIX: Final = "resources:"
TRAIT_PREFIX: Final = "trait:"
_ACCELERATORS: Final = frozenset({"FPGA", "PGPU", "VGPU"})
XILINX_TRAIT: Final = "trait:CUSTOM_FPGA_XILINX"


class ClassNotCounted(exceptions.QuotaError):
    """No rule charges a resource class, and [cyborg] unmapped is ``refuse``."""

    def __init__(self, resource_class: str, reason: str) -> None:
        self.resource_class = resource_class
        self.reason = reason
        super().__init__(f"Accelerators of resource class {resource_class} cannot be charged: {reason}.")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A resource rule. It matches if the class matches and all traits are required; both may contain the wildcard *.

    ``weights``: the amount of each resource that one accelerator is charged as.
    """

    resource_class: str
    traits: tuple[str, ...]
    weights: Mapping[str, int]

    def matches(self, resource_class: str, traits: Collection[str]) -> bool:
        """Whether the rule applies to an accelerator of this class with these required traits."""
        return fnmatch.fnmatchcase(resource_class, self.resource_class) and all(
            fnmatch.filter(traits, wanted) for wanted in self.traits
        )


def parse_rule(text: str) -> Rule:
    """A [cyborg] resource_rule, ``CLASS [TRAIT ...]: RESOURCE[=WEIGHT] ...``. Raises ConfigurationError."""
    left, colon, right = text.partition(":")
    classes, resources = left.split(), right.replace(",", " ").split()
    if not colon or not classes or not resources:
        raise exceptions.ConfigurationError(
            f"[cyborg] resource_rule {text!a} is not of the form `CLASS [TRAIT ...]: RESOURCE[=WEIGHT] ...`, as in "
            "`PGPU CUSTOM_GPU_A100: gpu.A100 su=12`."
        )
    weights = []
    for charged in resources:
        resource, has_weight, weight = charged.partition("=")
        try:
            validation.check_name("resource", resource)
            given: object = weight if has_weight else 1
            if weight.isascii() and weight.isdecimal() and len(weight) < 9:
                given = int(weight)
            amount = validation.integer(
                given, 1, MAX_WEIGHT, f"The weight of {resource} must be from 1 to {MAX_WEIGHT}"
            )
        except exceptions.InvalidRequest as error:
            raise exceptions.ConfigurationError(f"[cyborg] resource_rule {text!a}: {error}") from None
        weights.append((resource, amount))
    return Rule(classes[0], tuple(classes[1:]), _heaviest(weights))


MAX_WEIGHT: Final = 10**6


class ResourceMap:
    """The resource rules, and the resources listed in [quota] resources."""

    def __init__(self, rules: Iterable[Rule], counted: Iterable[str], *, refuses_unmapped: bool) -> None:
        self.rules = list(rules)
        self._counted = frozenset(counted)
        self._refuses = refuses_unmapped

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> ResourceMap:
        """Read [cyborg] and [quota]. Raises ConfigurationError."""
        return cls(
            [parse_rule(text) for text in conf.cyborg.resource_rule],
            conf.quota.resources,
            refuses_unmapped=conf.cyborg.unmapped == "refuse",
        )

    @property
    def resources(self) -> frozenset[str]:
        """The counted resources of all rules."""
        return frozenset(resource for rule in self.rules for resource in rule.weights) & self._counted

    def deltas(self, group: Mapping[str, str]) -> dict[str, int]:
        """The amount to charge per resource for one accelerator; {} if it is not counted. Raises ClassNotCounted.

        The class is the first one of the group, as in Cyborg. (Nova asks Placement for all of a group from one
        provider, and a provider of Cyborg has one class.)
        """
        chosen = next((key.removeprefix(RESOURCES_PREFIX) for key in group if key.startswith(RESOURCES_PREFIX)), None)
        if chosen is None:
            return {}  # Cyborg creates no ARQ for such a group
        traits = [
            key.removeprefix(TRAIT_PREFIX)
            for key, value in group.items()
            if key.startswith(TRAIT_PREFIX) and value == "required"
        ]
        charged = _heaviest(
            weight for rule in self.rules if rule.matches(chosen, traits) for weight in rule.weights.items()
        )
        if not charged:
            self._refuse(chosen, "no [cyborg] resource_rule matches it; add one, or set unmapped = ignore")
        uncounted = [resource for resource in charged if resource not in self._counted]
        if uncounted:
            self._refuse(
                chosen,
                f"a rule charges it as {', '.join(uncounted)}, which [quota] resources does not list; add it there, "
                "or set [cyborg] unmapped = ignore",
            )
        return {resource: weight for resource, weight in charged.items() if resource in self._counted}

    def amounts_of(self, resource_class: str, traits: Collection[str]) -> dict[str, int]:
        """What one unit of a provider's inventory is counted as, by resource; {} if it is not of accelerators.

        As for a device profile group that requires all ``traits`` of the provider. A * in a rule matches only the
        classes that Cyborg uses: FPGA, PGPU, VGPU and CUSTOM_*; other classes must be named.
        """
        matching = (rule for rule in self._rules_of(resource_class) if rule.matches(resource_class, traits))
        charged = _heaviest(weight for rule in matching for weight in rule.weights.items())
        return {resource: weight for resource, weight in charged.items() if resource in self._counted}

    def may_count(self, resource_class: str) -> bool:
        """Whether ``amounts_of`` may return a resource of this class, with some traits."""
        return any(fnmatch.fnmatchcase(resource_class, rule.resource_class) for rule in self._rules_of(resource_class))

    def _rules_of(self, resource_class: str) -> list[Rule]:
        if resource_class in _ACCELERATORS or resource_class.startswith("CUSTOM_"):
            return self.rules
        return [rule for rule in self.rules if rule.resource_class == resource_class]

    def _refuse(self, resource_class: str, reason: str) -> None:
        if self._refuses:
            raise ClassNotCounted(resource_class, reason)


def _heaviest(charged: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The largest weight of each resource."""
    weights: dict[str, int] = {}
    for resource, weight in charged:
        weights[resource] = max(weight, weights.get(resource, 0))
    return weights


def source(conf: cfg.ConfigOpts) -> str:
    """The value of [cyborg] source. Raises ConfigurationError."""
    if conf.cyborg.source is None:
        raise exceptions.ConfigurationError(
            "[cyborg] source is not set: set it to the name of this Cyborg's region, such as RegionOne, the same on "
            "all of its hosts."
        )
    try:
        return validation.check_name("source", conf.cyborg.source)
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[cyborg] source: {error}") from None


def pod(conf: cfg.ConfigOpts) -> str | None:
    """The value of [cyborg] pod. Raises ConfigurationError."""
    try:
        return None if conf.cyborg.pod is None else validation.pod_name(conf.cyborg.pod)
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[cyborg] pod: {error}") from None


def requests_of(group: Mapping[str, str]) -> int:
    """The number of ARQs that Cyborg creates for a device profile group: one per unit, two per Xilinx FPGA.

    The rule is taken from ARQsController.post in Cyborg 16 and 17.
    """
    if group.get(XILINX_TRAIT) == "required":
        return 2 * int(group.get(f"{RESOURCES_PREFIX}FPGA", 0))
    return sum(int(value) for key, value in group.items() if key.startswith("resources"))
