# SPDX-License-Identifier: Apache-2.0
"""Random histories of pods, selections and claims, compared with a plain model, on each database.

A project is never bound to a pod that the filters refuse at that moment, a binding moves only for a reason, and each
project has at most one current binding for a zone of the pod and a set of tags. A request without a zone uses the
oldest one that serves it, and makes one only if there is none. A tag that no pod has is ignored. A claim goes to the
pod of its group, else to the bound pod, else to the best one that fits, else to the bound pod although it is full; a
refused claim changes no binding. C1 to C5 hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota import ANY, Inventory, exceptions
from cyborg_quota.types import PodChoice
from cyborg_quota.types.capacity import ResourceUse
from tests import base, fixtures
from tests.model import histories

T = TypeVar("T")
NAMES = st.sampled_from(["p1", "p2", "p3", "p4"])
PROJECTS = st.sampled_from(["film", "lab"])
ZONES = st.sampled_from([None, "a", "b"])
TAGS = st.sampled_from([{}, {}, {"x": "1"}, {"x": "1", "y": "2"}])
SPECS = st.sampled_from([{}, {}, {"x": "1"}, {"x": "1", "y": "2"}, {"y": "2"}, {"hw:cpu_policy": "shared", "x": "1"}])
REQUESTS = st.sampled_from([None, {"gpu": 1}, {"gpu": 2, "fpga": 1}])
USAGES = st.dictionaries(st.sampled_from(["gpu", "fpga"]), st.builds(ResourceUse, st.just(10), st.integers(0, 11)))
GROUPS = st.sampled_from([None, "vm", "vm"])
TOTALS = st.sampled_from([None, 3, 5])
LIMIT = 9
"""The limit of each project, of gpu."""
EXAMPLES = {"sqlite": 6, "mariadb": 2, "postgresql": 2}
SEED = 4


@dataclasses.dataclass
class ModelPod:
    """A pod of the model. ``order``: pods with a lower one were added earlier."""

    order: int
    zone: str | None
    tags: dict[str, str]
    weight: int
    threshold: int
    state: str = "available"
    usage: dict[str, ResourceUse] | None = None
    total: int = 0

    def has_room(self, request: dict[str, int] | None) -> bool:
        if self.usage is None:
            return True
        if not self.usage:
            return False
        for resource in self.usage if request is None else request:
            use = self.usage.get(resource)
            if use is None or use.used >= use.capacity * self.threshold / 100:
                return False
        return True

    def serves(self, zone: str | None, tags: dict[str, str], request: dict[str, int] | None) -> bool:
        fits_tags = tags.items() <= self.tags.items() if tags else not self.tags
        return self.state == "available" and zone in (None, self.zone) and fits_tags and self.has_room(request)


@dataclasses.dataclass(frozen=True)
class ModelClaim:
    """A live claim of gpu."""

    project: str
    group: str | None
    pod: str
    amount: int
    consumer: str
    uuid: str


class PodHistories(histories.LedgerMachine):
    def __init__(self) -> None:
        super().__init__()
        limits = fixtures.DictLimits()
        self.begin_with(limits)
        for project in ("film", "lab"):
            limits.own[project, "gpu"] = LIMIT
        self.pods = self.engine.pods
        self.claims: list[ModelClaim] = []
        self.consumers = 0
        self.known: dict[str, ModelPod] = {}
        self.bindings: dict[Any, str] = {}  # by project, zone of the pod, and tags; the oldest first
        self.moves = self.added = 0

    @stateful.initialize(
        pods=st.lists(st.tuples(NAMES, ZONES, TAGS, TOTALS), min_size=6, max_size=9),
        selections=st.lists(st.tuples(PROJECTS, ZONES, SPECS), min_size=2, max_size=5),
    )
    def begin(self, pods: list[Any], selections: list[Any]) -> None:
        """Add pods and bindings: without them, most claims are refused."""
        for name, zone, tags, total in pods:
            self.add(name, zone=zone, tags=tags, weight=0, threshold=100, total=total)
        for project, zone, specs in selections:
            self.select(project, zone, specs, None)

    @stateful.rule(
        name=NAMES,
        zone=ZONES,
        tags=TAGS,
        weight=st.integers(-1, 1),
        threshold=st.sampled_from([50, 100]),
        total=TOTALS,
    )
    def add(
        self, name: str, *, zone: str | None, tags: dict[str, str], weight: int, threshold: int, total: int | None
    ) -> None:
        options: Any = {"zone": zone, "affinity": tags, "weight": weight, "threshold": threshold}
        if name in self.known:
            present = self.known[name]
            if (present.zone, present.tags, present.weight, present.threshold) != (zone, tags, weight, threshold):
                self.call(exceptions.PodExists, lambda: self.pods.add(base.ADMIN, name, **options))
            return
        self.pods.add(base.ADMIN, name, **options)
        self.added += 1
        self.known[name] = ModelPod(self.added, zone, tags, weight, threshold, total=total or 0)
        if total is not None:
            self.engine.capacity.add_provider(base.ADMIN, f"node of {name}", pod=name)
            self.engine.capacity.set_inventories(base.ADMIN, f"node of {name}", {"gpu": Inventory(total)})

    @stateful.rule(name=NAMES, state=st.sampled_from(["available", "available", "maintenance", "disabled"]))
    def set_state(self, name: str, state: Any) -> None:
        self.call(
            None if name in self.known else exceptions.PodNotFound,
            lambda: self.pods.change(base.ADMIN, name, state=state),
        )
        if name in self.known:
            self.known[name].state = state

    @stateful.rule(name=NAMES, usage=USAGES)
    def measure(self, name: str, usage: dict[str, ResourceUse]) -> None:
        if name in self.known:
            self.pods.set_usage(base.ADMIN, name, usage)
            self.known[name].usage = usage

    @stateful.rule(name=NAMES)
    def remove(self, name: str) -> None:
        pod = self.known.get(name)
        error: type[Exception] | None = None if pod else exceptions.PodNotFound
        if name in self.bindings.values() or any(claim.pod == name for claim in self.claims):
            error = exceptions.PodInUse
        elif pod and pod.total:
            self.call(exceptions.PodInUse, lambda: self.pods.remove(base.ADMIN, name))
            self.engine.capacity.remove_provider(base.ADMIN, f"node of {name}")
        self.call(error, lambda: self.pods.remove(base.ADMIN, name))
        if error is None:
            del self.known[name]

    def compared(self, specs: dict[str, str]) -> dict[str, str]:
        known = {key for pod in self.known.values() for key in pod.tags}
        return {key: value for key, value in specs.items() if key in known}

    def bound(self, project: str, zone: str | None, tags: dict[str, str]) -> list[str]:
        """The pods of the bindings that a request may use, the oldest first."""
        text = tuple(sorted(tags.items()))
        return [
            pod
            for (owner, in_zone, of), pod in self.bindings.items()
            if (owner, of) == (project, text) and zone in (None, in_zone)
        ]

    def bind(self, project: str, zone: str | None, tags: dict[str, str], name: str) -> None:
        """Bind to a pod that no binding of the request has: in its zone, or the oldest binding moves."""
        text = tuple(sorted(tags.items()))
        new = (project, self.known[name].zone, text)
        bound = self.bound(project, zone, tags)
        if new not in self.bindings and bound:
            del self.bindings[project, self.known[bound[0]].zone, text]
        self.bindings.pop(new, None)
        self.bindings[new] = name
        self.moves += 1

    def best_first(self, zone: str | None, tags: dict[str, str], request: dict[str, int] | None) -> list[str]:
        """The pods that pass the filters."""
        fitting = {name for name, pod in self.known.items() if pod.serves(zone, tags, request)}
        return sorted(fitting, key=lambda one: (-self.known[one].weight, self.known[one].order))

    @stateful.rule(project=PROJECTS, zone=ZONES, specs=SPECS, request=REQUESTS)
    def select(self, project: str, zone: str | None, specs: dict[str, str], request: dict[str, int] | None) -> None:
        tags = self.compared(specs)
        bound = self.bound(project, zone, tags)
        available = [name for name in bound if self.known[name].state == "available"]
        serving = [name for name in available if self.known[name].has_room(request)]
        others = [name for name in self.best_first(zone, tags, request) if name not in bound]
        fitting = [*serving, *others, *available, *bound]
        chosen = self.call(
            None if bound or others else exceptions.NoPodFits,
            lambda: self.pods.select(base.ADMIN, zone, specs, request, project).pod,
        )
        if fitting:
            assert chosen == fitting[0], f"{chosen} instead of {fitting[0]}"
        if not serving and others:
            self.bind(project, zone, tags, others[0])

    @stateful.rule(project=PROJECTS, zone=ZONES, specs=SPECS, name=NAMES)
    def move(self, project: str, zone: str | None, specs: dict[str, str], name: str) -> None:
        tags, pod = self.compared(specs), self.known.get(name)
        error: type[Exception] | None = None
        if pod is None or pod.state != "available":
            error = exceptions.PodNotFound if pod is None else exceptions.PodNotAvailable
        elif zone not in (None, pod.zone):
            error = exceptions.InvalidPod
        self.call(error, lambda: self.pods.move_binding(base.ADMIN, project, name, zone, specs))
        if error is not None:
            return
        bound = self.bound(project, zone, tags)
        if bound != [name]:
            for other in bound:
                del self.bindings[project, self.known[other].zone, tuple(sorted(tags.items()))]
            self.bind(project, zone, tags, name)

    @stateful.rule(project=PROJECTS, zone=ZONES, specs=SPECS, amount=st.integers(1, 4), group=GROUPS)
    def claim(self, project: str, zone: str | None, specs: dict[str, str], amount: int, group: str | None) -> None:
        tags, request = self.compared(specs), {"gpu": amount}
        bound = self.bound(project, zone, tags)
        of_group = [one for one in self.claims if group is not None and (one.project, one.group) == (project, group)]
        held = [one.pod for one in of_group]
        options = list(dict.fromkeys(held))
        others: list[str] = []
        if not held:
            available = [name for name in bound if self.known[name].state == "available"]
            others = [name for name in self.best_first(zone, tags, request) if name not in bound]
            # (Last: although it is full.)
            options = [*[name for name in available if self.known[name].has_room(request)], *others, *available]
        chosen = next((name for name in options if self.free(name) >= amount), None)
        if self.take(project, amount, group, chosen, pod=PodChoice(zone, specs)) and chosen in others:
            assert chosen is not None
            self.bind(project, zone, tags, chosen)

    @stateful.rule(project=PROJECTS, name=NAMES, amount=st.integers(1, 4), group=GROUPS)
    def claim_in_named_pod(self, project: str, name: str, amount: int, group: str | None) -> None:
        pod = self.known.get(name)
        error: type[Exception] = exceptions.OverCapacity
        if pod is None or pod.state != "available":
            error = exceptions.PodNotFound if pod is None else exceptions.PodNotAvailable
        fits = error is exceptions.OverCapacity and self.free(name) >= amount
        self.take(project, amount, group, name if fits else None, pod=name, error=error)

    def take(
        self,
        project: str,
        amount: int,
        group: str | None,
        chosen: str | None,
        *,
        pod: str | PodChoice,
        error: type[Exception] = exceptions.OverCapacity,
    ) -> bool:
        """Claim. ``chosen``: the pod that the model expects; None: it expects a refusal. Whether it was granted."""
        self.consumers += 1
        consumer = f"c{self.consumers}"
        arguments: Any = {"project_id": project, "group": group, "provider": ANY, "pod": pod, "consumer": consumer}
        refusal: type[Exception] | None = None if chosen else error
        if amount + sum(claim.amount for claim in self.claims if claim.project == project) > LIMIT:
            refusal = exceptions.OverQuota
        made = self.call(refusal, lambda: self.quotas.reserve(base.ADMIN, {"gpu": amount}, **arguments))
        if made is None or chosen is None:
            return False
        (uuid,) = made
        (row,) = self.engine.list_reservations(base.ADMIN, reservations=[uuid])
        assert row.provider == f"node of {chosen}", f"{row.provider} instead of {chosen}"
        assert self.free(chosen) >= amount, "the capacity is exceeded"
        self.claims.append(ModelClaim(project, group, chosen, amount, consumer, uuid))
        return True

    @stateful.precondition(lambda self: self.claims)
    @stateful.rule(data=st.data(), zone=ZONES, specs=SPECS)
    def repeat_a_claim(self, data: Any, zone: str | None, specs: dict[str, str]) -> None:
        """It returns its first rows, wherever a new claim would go, and changes no binding."""
        claim = data.draw(st.sampled_from(self.claims))
        arguments: Any = {"project_id": claim.project, "consumer": claim.consumer, "provider": ANY}
        for pod in (PodChoice(zone, specs), claim.pod):
            again = self.quotas.reserve(base.ADMIN, {"gpu": claim.amount}, **arguments, pod=pod)
            assert again == [claim.uuid]

    @stateful.precondition(lambda self: self.claims)
    @stateful.rule(data=st.data())
    def release(self, data: Any) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        self.quotas.release(base.ADMIN, [claim.uuid])
        self.claims.remove(claim)

    def free(self, name: str) -> int:
        """What is free in a pod."""
        return self.known[name].total - sum(claim.amount for claim in self.claims if claim.pod == name)

    @staticmethod
    def call(error: type[Exception] | None, call: Callable[[], T]) -> T | None:
        """Make a call that must raise ``error``; None: it must succeed, and its answer is returned."""
        try:
            answer = call()
        except exceptions.QuotaError as raised:
            assert error is not None and isinstance(raised, error), f"{raised!r} instead of {error}"
            return None
        assert error is None, f"{error} was not raised"
        return answer

    @stateful.invariant()
    def bindings_are_the_models(self) -> None:
        stored = [one for _, one in self.pods.list_bindings(base.ADMIN)]
        found = {
            (one.project_id, one.availability_zone, tuple(sorted(one.resource_affinity.items()))): one.pod
            for one in stored
        }
        assert len(found) == len(stored), "two current bindings"
        assert found == self.bindings
        assert len(self.pods.list_bindings(base.ADMIN, history=True)) == self.moves

    @stateful.invariant()
    def capacity_is_the_models(self) -> None:
        used = {record.provider: record.used for record in self.engine.capacity.list_inventories(base.ADMIN)}
        assert used == {f"node of {name}": pod.total - self.free(name) for name, pod in self.known.items() if pod.total}
        assert self.engine.audit(base.ADMIN) == []


class TestPodModel(base.BackendTestCase):
    def test_histories(self) -> None:
        histories.run(PodHistories, EXAMPLES[self.backend] * fixtures.MORE, seed=SEED, backend=self.backend)
