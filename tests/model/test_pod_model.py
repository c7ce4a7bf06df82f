# SPDX-License-Identifier: Apache-2.0
"""Random histories of pods and selections, compared with a plain model, on each database.

A project is never bound to a pod that the filters refuse at that moment, a binding moves only for a reason, and each
project has at most one current binding for a zone and a set of tags.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import testscenarios
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota import exceptions
from cyborg_quota.pod_types import ResourceUse
from tests import base, fixtures
from tests.model import histories
from tests.model.test_model import MORE

load_tests = testscenarios.load_tests_apply_scenarios

NAMES = st.sampled_from(["p1", "p2", "p3", "p4"])
PROJECTS = st.sampled_from(["film", "lab"])
ZONES = st.sampled_from([None, "a", "b"])
TAGS = st.sampled_from([{}, {}, {"x": "1"}, {"x": "1", "y": "2"}])
REQUESTS = st.sampled_from([None, {"gpu": 1}, {"gpu": 2, "fpga": 1}])
USAGES = st.dictionaries(st.sampled_from(["gpu", "fpga"]), st.builds(ResourceUse, st.just(10), st.integers(0, 11)))
EXAMPLES = {"sqlite": 20, "mariadb": 3, "postgresql": 3}


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

    def has_room(self, request: dict[str, int] | None) -> bool:
        if self.usage is None:
            return True
        for resource in self.usage if request is None else request:
            use = self.usage.get(resource)
            if use is None or use.used >= use.capacity * self.threshold / 100:
                return False
        return True

    def serves(self, zone: str | None, tags: dict[str, str], request: dict[str, int] | None) -> bool:
        fits_tags = tags.items() <= self.tags.items() if tags else not self.tags
        return self.state == "available" and zone in (None, self.zone) and fits_tags and self.has_room(request)


class PodHistories(stateful.RuleBasedStateMachine):
    """``backend`` is set by the test."""

    backend = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.ledger = fixtures.EmptyLedger(self.backend)
        self.ledger.setUp()
        self.engine = fixtures.make_engine(self.ledger.url)
        self.pods = self.engine.pods
        self.known: dict[str, ModelPod] = {}
        self.bindings: dict[Any, str] = {}
        self.moves = self.added = 0

    def teardown(self) -> None:
        self.engine.close()
        self.ledger.cleanUp()

    @stateful.rule(name=NAMES, zone=ZONES, tags=TAGS, weight=st.integers(-1, 1), threshold=st.sampled_from([50, 100]))
    def add(self, name: str, zone: str | None, tags: dict[str, str], weight: int, threshold: int) -> None:
        options: Any = {"zone": zone, "affinity": tags, "weight": weight, "threshold": threshold}
        if name in self.known:
            present = self.known[name]
            if (present.zone, present.tags, present.weight, present.threshold) != (zone, tags, weight, threshold):
                self.expect(exceptions.PodExists, lambda: self.pods.add(base.ADMIN, name, **options))
            return
        self.pods.add(base.ADMIN, name, **options)
        self.added += 1
        self.known[name] = ModelPod(self.added, zone, tags, weight, threshold)

    @stateful.rule(name=NAMES, state=st.sampled_from(["available", "available", "maintenance", "disabled"]))
    def set_state(self, name: str, state: Any) -> None:
        if name not in self.known:
            self.expect(exceptions.PodNotFound, lambda: self.pods.change(base.ADMIN, name, state=state))
            return
        self.pods.change(base.ADMIN, name, state=state)
        self.known[name].state = state

    @stateful.rule(name=NAMES, usage=USAGES)
    def measure(self, name: str, usage: dict[str, ResourceUse]) -> None:
        if name in self.known:
            self.pods.set_usage(base.ADMIN, name, usage)
            self.known[name].usage = usage

    @stateful.rule(name=NAMES)
    def remove(self, name: str) -> None:
        if name not in self.known:
            self.expect(exceptions.PodNotFound, lambda: self.pods.remove(base.ADMIN, name))
        elif name in self.bindings.values():
            self.expect(exceptions.PodInUse, lambda: self.pods.remove(base.ADMIN, name))
        else:
            self.pods.remove(base.ADMIN, name)
            del self.known[name]

    @stateful.rule(project=PROJECTS, zone=ZONES, tags=TAGS, request=REQUESTS)
    def select(self, project: str, zone: str | None, tags: dict[str, str], request: dict[str, int] | None) -> None:
        key = (project, zone, tuple(sorted(tags.items())))
        before = self.bindings.get(key)
        fitting = {name for name, pod in self.known.items() if pod.serves(zone, tags, request)}
        call = lambda: self.pods.select(base.ADMIN, zone, tags, request, project)  # noqa: E731
        if before is None and not fitting:
            self.expect(exceptions.NoPodFits, call)
            return
        chosen = call().pod
        assert chosen is not None
        present = None if before is None else self.known[before]
        if present is not None and present.state == "available" and present.has_room(request):
            assert chosen == before, "it moved without a reason"
        elif fitting - {before}:
            best = min(fitting - {before}, key=lambda one: (-self.known[one].weight, self.known[one].order))
            assert chosen == best, f"{chosen} instead of {best}"
        else:
            assert chosen == before, "no other pod fits"
        self.moves += chosen != before
        self.bindings[key] = chosen

    @stateful.rule(project=PROJECTS, zone=ZONES, tags=TAGS, name=NAMES)
    def move(self, project: str, zone: str | None, tags: dict[str, str], name: str) -> None:
        pod = self.known.get(name)
        if pod is None or pod.state != "available":
            error = exceptions.PodNotFound if pod is None else exceptions.PodNotAvailable
            self.expect(error, lambda: self.pods.move_binding(base.ADMIN, project, name, zone, tags))
            return
        self.pods.move_binding(base.ADMIN, project, name, zone, tags)
        key = (project, zone, tuple(sorted(tags.items())))
        self.moves += self.bindings.get(key) != name
        self.bindings[key] = name

    @staticmethod
    def expect(error: type[Exception], call: Any) -> None:
        try:
            call()
        except error:
            return
        raise AssertionError(f"{error.__name__} was not raised")

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


class TestPodModel(base.BackendTestCase):
    def test_histories(self) -> None:
        histories.run(PodHistories, EXAMPLES[self.backend] * MORE, backend=self.backend)
