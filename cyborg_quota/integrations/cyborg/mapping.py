# SPDX-License-Identifier: Apache-2.0
"""From a device profile's group to what one of its accelerators is charged as. Pure: no I/O, no Cyborg.

A group is Cyborg's: {"resources:PGPU": "2", "trait:CUSTOM_GPU_A100": "required", "accel:bitstream_id": ...}. Cyborg
makes one ARQ for each unit that its ``resources:`` keys ask for.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping
from typing import Final

from oslo_config import cfg

from cyborg_quota import exceptions, names

RESOURCES_PREFIX: Final = "resources:"
TRAIT_PREFIX: Final = "trait:"
XILINX_TRAIT: Final = "trait:CUSTOM_FPGA_XILINX"


class ClassNotCounted(exceptions.QuotaError):
    """A resource class that cannot be charged as anything, and [cyborg] unmapped says to refuse those."""

    def __init__(self, resource_class: str, reason: str) -> None:
        self.resource_class = resource_class
        self.reason = reason
        super().__init__(f"Accelerators of resource class {resource_class} cannot be charged: {reason}.")


@dataclasses.dataclass(frozen=True)
class Rule:
    """``resource_class`` and ``traits`` may hold *. Matches when the class does, and all traits are required."""

    resource_class: str
    traits: tuple[str, ...]
    resources: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' '.join([self.resource_class, *self.traits])}: {' '.join(self.resources)}"

    def matches(self, resource_class: str, traits: Iterable[str]) -> bool:
        """Whether an accelerator of this class, with these required traits, is meant."""
        required = list(traits)
        return fnmatch.fnmatchcase(resource_class, self.resource_class) and all(
            fnmatch.filter(required, wanted) for wanted in self.traits
        )


def parse_rule(text: str) -> Rule:
    """A [cyborg] resource_rule, ``CLASS [TRAIT ...]: RESOURCE [RESOURCE ...]``. Raises ConfigurationError."""
    left, colon, right = text.partition(":")
    classes, resources = left.split(), right.replace(",", " ").split()
    if not colon or not classes or not resources:
        raise exceptions.ConfigurationError(
            f"[cyborg] resource_rule {text!a} is not of the form `CLASS [TRAIT ...]: RESOURCE [RESOURCE ...]`, as in "
            "`PGPU CUSTOM_GPU_A100: gpu.A100`."
        )
    for resource in resources:
        try:
            names.check_name("resource", resource)
        except exceptions.InvalidName as error:
            raise exceptions.ConfigurationError(f"[cyborg] resource_rule {text!a}: {error}") from None
    return Rule(classes[0], tuple(classes[1:]), tuple(dict.fromkeys(resources)))


class ResourceMap:
    """The rules, and the resources that are counted at all."""

    def __init__(self, rules: Iterable[Rule], counted: Iterable[str], *, refuses_unmapped: bool) -> None:
        self.rules = list(rules)
        self._counted = frozenset(counted)
        self._refuses = refuses_unmapped

    @classmethod
    def from_conf(cls, conf: cfg.ConfigOpts) -> ResourceMap:
        """As [cyborg] and [quota] say. Raises ConfigurationError."""
        return cls(
            [parse_rule(text) for text in conf.cyborg.resource_rule],
            conf.quota.resources,
            refuses_unmapped=conf.cyborg.unmapped == "refuse",
        )

    @property
    def resources(self) -> frozenset[str]:
        """What accelerators are charged as now."""
        return frozenset(resource for rule in self.rules for resource in rule.resources) & self._counted

    @property
    def rules_in_force(self) -> list[Rule]:
        """The rules whose resources are all counted."""
        return [rule for rule in self.rules if self._counted.issuperset(rule.resources)]

    def deltas(self, group: Mapping[str, str], resource_class: str | None = None) -> dict[str, int]:
        """What one accelerator of a group is charged as; {} where it is not counted. Raises ClassNotCounted.

        ``resource_class``: which one, for a group that asks for several. Without it the first, as Cyborg itself does.
        """
        classes = classes_of(group)
        if not classes:
            return {}  # Cyborg makes no ARQ of it
        chosen = resource_class if resource_class in classes else classes[0]
        traits = traits_of(group)
        found = dict.fromkeys(
            resource for rule in self.rules if rule.matches(chosen, traits) for resource in rule.resources
        )
        if not found:
            self._refuse(chosen, "no [cyborg] resource_rule matches it; add one, or set unmapped = ignore")
        uncounted = [resource for resource in found if resource not in self._counted]
        if uncounted:
            self._refuse(
                chosen,
                f"a rule charges it as {', '.join(uncounted)}, which [quota] resources does not list; add it there, "
                "or set [cyborg] unmapped = ignore",
            )
        return {resource: 1 for resource in found if resource in self._counted}

    def _refuse(self, resource_class: str, reason: str) -> None:
        if self._refuses:
            raise ClassNotCounted(resource_class, reason)


def source(conf: cfg.ConfigOpts) -> str:
    """[cyborg] source. Raises ConfigurationError."""
    try:
        return names.check_name("source", conf.cyborg.source)
    except exceptions.InvalidName as error:
        raise exceptions.ConfigurationError(f"[cyborg] source: {error}") from None


def classes_of(group: Mapping[str, str]) -> list[str]:
    """The resource classes that a device profile group asks for, in its order."""
    return [key.removeprefix(RESOURCES_PREFIX) for key in group if key.startswith(RESOURCES_PREFIX)]


def traits_of(group: Mapping[str, str]) -> list[str]:
    """The traits that it requires."""
    return [
        key.removeprefix(TRAIT_PREFIX)
        for key, value in group.items()
        if key.startswith(TRAIT_PREFIX) and value == "required"
    ]


def requests_of(group: Mapping[str, str]) -> int:
    """How many ARQs Cyborg makes of a device profile group: one for each unit, two for each Xilinx FPGA.

    The rule is that of ARQsController.post in Cyborg 16 and 17.
    """
    if group.get(XILINX_TRAIT) == "required":
        return 2 * int(group.get(f"{RESOURCES_PREFIX}FPGA", 0))
    return sum(int(value) for key, value in group.items() if key.startswith("resources"))
