# SPDX-License-Identifier: Apache-2.0
"""Random histories of claims with and without providers, compared with a plain model, on each database.

After each step, C1-C5 hold: the counters are the sums of the model's rows (C1, C3), no granted claim exceeded the
capacity (C2), and what was refused did not fit (C2, C4) or had claims (C5). A pool serves some of the hosts: with ANY,
what such a host has no inventory of is taken from the pool. All rules of test_model.py take part.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from fixtures import MonkeyPatch
from hypothesis import stateful
from hypothesis import strategies as st

from cyborg_quota import ANY, Claim, Headroom, Inventory, exceptions
from tests import base, fixtures, history_replay
from tests.model import histories, test_model
from tests.model.model import ENDED, Model, Row

HOSTS = ("n1", "n2", "n3")
PODS = {"n1": "p1"}  # a server chooses only among providers outside pods
PROVIDERS = st.sampled_from([*HOSTS, "pool"])
CLAIMED = st.sampled_from([*HOSTS, "pool", ANY, ANY])
AMOUNTS = st.integers(1, 4)
POSITIVE = st.one_of(st.fixed_dictionaries({"gpu": AMOUNTS}), st.fixed_dictionaries({"gpu": AMOUNTS, "fpga": AMOUNTS}))
INVENTORIES = st.builds(
    Inventory,
    total=st.integers(2, 9),
    reserved=st.integers(0, 2),
    min_unit=st.sampled_from([1, 1, 2, 3]),
    max_unit=st.sampled_from([None, None, 3]),
    step_size=st.sampled_from([1, 1, 2]),
)
EXAMPLES = {"sqlite": 4, "mariadb": 2, "postgresql": 2}
SEED = 4


@dataclasses.dataclass
class CapacityModel:
    """Inventories by (provider, resource). The claims are the rows of the model of quotas."""

    quotas: Model
    inventories: dict[tuple[str, str], Inventory] = dataclasses.field(default_factory=dict)
    providers: set[str] = dataclasses.field(default_factory=set)
    elsewhere: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    served: set[str] = dataclasses.field(default_factory=set)

    def provider_of(self, host: str, resource: str) -> str:
        """The provider from which a claim with ANY takes a resource, if it chooses this host."""
        return "pool" if host in self.served and (host, resource) not in self.inventories else host

    def used(self, provider: str, resource: str) -> int:
        return sum(
            row.delta
            for row in self.quotas.rows
            if (row.provider, row.resource) == (provider, resource) and row.state not in ENDED
        )

    def capacity(self, provider: str, resource: str) -> int:
        inventory = self.inventories[provider, resource]
        return inventory.total - inventory.reserved

    def fits(self, provider: str, deltas: Mapping[str, int]) -> bool:
        return all(self.fits_at((provider, resource), amount) for resource, amount in deltas.items())

    def fits_host(self, host: str, deltas: Mapping[str, int]) -> bool:
        """Whether a claim with ANY fits at this host, and at the pool that serves it."""
        keys = {resource: (self.provider_of(host, resource), resource) for resource in deltas}
        return all(self.fits_at(keys[resource], amount) for resource, amount in deltas.items())

    def fits_at(self, key: tuple[str, str], amount: int) -> bool:
        return key in self.inventories and self.fits_units(key, amount) and amount <= self.free(*key)

    def free(self, provider: str, resource: str) -> int:
        """What is left of the capacity of an inventory; negative if more is in use."""
        elsewhere = self.elsewhere.get((provider, resource), 0)
        return self.capacity(provider, resource) - self.used(provider, resource) - elsewhere

    def fits_units(self, key: tuple[str, str], amount: int) -> bool:
        inventory = self.inventories[key]
        most = inventory.total if inventory.max_unit is None else inventory.max_unit
        in_steps = inventory.min_unit < amount <= most and amount % inventory.step_size == 0
        return amount == inventory.min_unit or in_steps

    def refuse(self, project: str, deltas: Mapping[str, int], provider: str) -> None:
        """A limit of the provider's pod comes before its capacity. ANY takes a provider that both permit."""
        fits, providers = (self.fits_host, HOSTS) if provider == ANY else (self.fits, (provider,))
        fitting = [one for one in providers if fits(one, deltas)]
        has_all = all((provider, resource) in self.inventories for resource in deltas)
        if has_all and self.is_pod_limited(project, provider, deltas):
            raise exceptions.OverQuota([])
        if not fitting:
            raise exceptions.OverCapacity([])
        if all(self.is_pod_limited(project, one, deltas) for one in fitting):
            raise exceptions.OverQuota([])

    def is_pod_limited(self, project: str, provider: str, deltas: Mapping[str, int]) -> bool:
        """Whether a limit of the provider's pod refuses the amounts."""
        return bool(self.quotas.blockers(project, self.quotas.in_pod(provider, deltas)))

    def is_used(self, provider: str, resource: str | None = None) -> bool:
        return any(
            self.used(provider, one) for name, one in self.inventories if name == provider and resource in (None, one)
        )

    def reserve(
        self, project: str, consumer: str | None, deltas: Mapping[str, int], group: str | None, provider: str
    ) -> list[Row]:
        """As Model.reserve, of one claim with a provider. (With ANY, the caller sets the provider of new rows.)"""
        if provider != ANY and provider not in self.providers:
            raise exceptions.ProviderNotFound(provider)
        rows = [
            row
            for row in self.quotas.rows
            if (row.project, row.consumer) == (project, consumer) and row.state not in ENDED
        ]
        held = [] if consumer is None or any(row.overdue for row in rows) else rows
        if held:
            answer = self.quotas.reserve(project, [(consumer, deltas)], group, "reserved")
            if any(row.provider is None or provider not in (ANY, row.provider) for row in held):
                raise exceptions.ReservationConflict(str(consumer), {}, deltas)
            return answer
        if consumer is not None and rows:
            self.quotas._end([row for row in rows if row.overdue], "expired")
            if any(row.state not in ENDED for row in rows):
                return self.reserve(project, consumer, deltas, group, provider)
        if self.quotas.blockers(project, deltas):
            raise exceptions.OverQuota([])
        self.refuse(project, deltas, provider)
        answer = self.quotas.reserve(project, [(consumer, deltas)], group, "reserved")
        for row in answer:
            row.provider = provider
        return answer


class CapacityHistories(test_model.Histories):
    def __init__(self) -> None:
        super().__init__()
        self.capacity = self.engine.capacity
        self.places = CapacityModel(self.model)
        self.model.pods = PODS
        for pod in PODS.values():
            self.engine.pods.add(base.ADMIN, pod)
        self.steps = 0

    @stateful.rule(
        project=test_model.PROJECTS, host=st.sampled_from([*PODS]), limit=st.integers(-1, 6), is_subtree=st.booleans()
    )
    def set_pod_limit(self, project: str, host: str, limit: int, is_subtree: bool) -> None:
        """The counters of a pod are compared after every step, so that it is correct at once."""
        (name,) = self.model.in_pod(host, {"gpu": 0})
        (self.limits.subtree_limits if is_subtree else self.limits.own)[project, name] = limit

    @stateful.initialize(inventories=st.tuples(INVENTORIES, INVENTORIES, INVENTORIES))
    def begin_with_providers(self, inventories: tuple[Inventory, Inventory, Inventory]) -> None:
        """n2 and n3 begin with equal inventories, which a headroom reads as one row."""
        first, second, pool = inventories
        for name, inventory in zip((*HOSTS, "pool"), (first, second, second, pool), strict=True):
            self.add_provider(name)
            self.set_inventory(name, "gpu", inventory)
            if name != "n2":  # (it takes fpga from the pool)
                self.set_inventory(name, "fpga", Inventory(4))
        self.set_served("n2", is_served=True)

    @stateful.rule(name=PROVIDERS)
    def add_provider(self, name: str) -> None:
        def mine() -> None:
            if name in self.places.providers:
                raise exceptions.ProviderExists(name)
            self.places.providers.add(name)

        self.both(
            mine, lambda: self.capacity.add_provider(base.ADMIN, name, can_host=name != "pool", pod=PODS.get(name))
        )

    @stateful.rule(name=st.sampled_from(HOSTS), is_served=st.booleans())
    def set_served(self, name: str, is_served: bool) -> None:
        """The hosts in pods have no pool."""

        def mine() -> None:
            self.refuse_unknown("pool")
            self.refuse_unknown(name)
            if is_served and name in PODS:
                raise exceptions.ProviderInUse(name, None, "")
            (self.places.served.add if is_served else self.places.served.discard)(name)

        change: Any = {"add" if is_served else "remove": [name]}
        self.both(mine, lambda: self.capacity.set_served(base.ADMIN, "pool", **change))

    @stateful.rule(name=PROVIDERS, resource=test_model.RESOURCES, inventory=INVENTORIES)
    def set_inventory(self, name: str, resource: str, inventory: Inventory) -> None:
        if inventory.max_unit is not None and inventory.max_unit < inventory.min_unit:
            inventory = dataclasses.replace(inventory, max_unit=None)

        def mine() -> None:
            self.refuse_unknown(name)
            self.places.inventories[name, resource] = inventory

        self.both(mine, lambda: self.capacity.set_inventories(base.ADMIN, name, {resource: inventory}))

    @stateful.rule(name=PROVIDERS, resource=test_model.RESOURCES, amount=st.integers(0, 4))
    def set_used_elsewhere(self, name: str, resource: str, amount: int) -> None:
        def mine() -> None:
            self.refuse_unknown(name)
            if (name, resource) in self.places.inventories:
                self.places.elsewhere[name, resource] = amount

        self.both(mine, lambda: self.capacity.set_inventories(base.ADMIN, name, {}, used_elsewhere={resource: amount}))

    @stateful.rule(name=PROVIDERS)
    def remove_provider(self, name: str) -> None:
        def mine() -> None:
            self.refuse_unknown(name)
            if name == "pool" and self.places.served:
                raise exceptions.ProviderInUse(name, None, "")
            self.refuse_used(name, None)
            self.places.served.discard(name)
            self.places.providers.remove(name)
            for row in self.model.rows:
                row.provider = None if row.provider == name else row.provider
            for key in [key for key in self.places.inventories if key[0] == name]:
                del self.places.inventories[key]
                self.places.elsewhere.pop(key, None)

        self.both(mine, lambda: self.capacity.remove_provider(base.ADMIN, name))

    @stateful.rule(name=PROVIDERS, resource=test_model.RESOURCES)
    def remove_inventory(self, name: str, resource: str) -> None:
        def mine() -> None:
            self.refuse_unknown(name)
            self.refuse_used(name, resource)
            self.places.inventories.pop((name, resource), None)
            self.places.elsewhere.pop((name, resource), None)

        self.both(mine, lambda: self.capacity.remove_inventory(base.ADMIN, name, resource))

    def refuse_unknown(self, name: str) -> None:
        if name not in self.places.providers:
            raise exceptions.ProviderNotFound(name)

    def refuse_used(self, name: str, resource: str | None) -> None:
        """C5."""
        if self.places.is_used(name, resource):
            raise exceptions.ProviderInUse(name, resource, "")

    @stateful.rule(
        project=test_model.PROJECTS,
        consumer=test_model.NAMES,
        deltas=POSITIVE,
        group=test_model.GROUPS,
        provider=CLAIMED,
    )
    def reserve_at(
        self, project: str, consumer: str | None, deltas: dict[str, int], group: str | None, provider: str
    ) -> None:
        before = {name: self.places.fits_host(name, deltas) for name in HOSTS}
        rows, uuids = self.both(
            lambda: self.places.reserve(project, consumer, deltas, group, provider),
            lambda: self.quotas.reserve(
                base.ADMIN, deltas, project_id=project, consumer=consumer, group=group, provider=provider
            ),
        )
        self.name(rows, uuids)
        chosen = {row.uuid: row.provider for row in self.engine.list_reservations(base.ADMIN, reservations=uuids or [])}
        if any(row.provider == ANY for row in rows or []):
            for row in rows:
                row.provider = chosen[str(row.uuid)]
            found = {row.resource: row.provider for row in rows}
            hosts = [name for name in HOSTS if found == {one: self.places.provider_of(name, one) for one in found}]
            # An overdue reservation of the consumer may have been the reason why it did not fit before.
            assert hosts, f"{found} is no choice"
            assert any(before[name] for name in hosts) or consumer is not None, f"{deltas} did not fit at {hosts}"

    @stateful.rule(project=test_model.PROJECTS, consumer=test_model.NAMES, amount=AMOUNTS, provider=PROVIDERS)
    def adopt_at(self, project: str, consumer: str | None, amount: int, provider: str) -> None:
        """C2: an adoption may exceed the capacity."""
        held = [row for row in self.model.rows if (row.project, row.consumer) == (project, consumer)]
        if consumer is not None and any(row.state not in ENDED for row in held):
            return  # (test_model.py and the functional tests adopt what is held)
        if provider not in self.places.providers or (provider, "gpu") not in self.places.inventories:
            return
        rows = self.model.adopt(project, consumer, {"gpu": amount}, None)
        rows[0].provider = provider
        self.name(rows, self.quotas.adopt(base.ADMIN, [Claim(consumer, {"gpu": amount}, provider=provider)], project))

    def check_growth(self, rows: Any, amounts: Any) -> None:
        """C2 and C4: a growth must fit. The units apply to the new amount, also of a reduction."""
        for row in rows:
            if row.provider is None:
                continue
            new, key = amounts[row.resource], (row.provider, row.resource)
            is_over = new > row.delta and new - row.delta > self.places.free(*key)
            if is_over or not self.places.fits_units(key, new):
                raise exceptions.OverCapacity([])

    @stateful.rule(project=test_model.PROJECTS, provider=CLAIMED)
    def reserve_the_headroom(self, project: str, provider: str) -> None:
        headroom = self.check_headroom(project, provider)
        if headroom is not None and headroom.fits:
            self.reserve_at(project, None, {"gpu": headroom.fits}, None, provider)

    @stateful.invariant()
    def one_headroom_is_the_models(self) -> None:
        self.steps += 1
        project = sorted(test_model.TREE)[self.steps % len(test_model.TREE)]
        self.check_headroom(project, (ANY, "n1", "n2", "pool", ANY)[self.steps % 5])

    def check_headroom(self, project: str, provider: str) -> Headroom | None:
        """No larger amount is permitted by the quota and by one provider; and so for the number of bundles."""
        providers = HOSTS if provider == ANY else (provider,)
        if provider != ANY and provider not in self.places.providers:
            return None
        headroom = self.engine.headroom(base.ADMIN, project, provider=provider)["gpu"]
        fits = self.places.fits_host if provider == ANY else self.places.fits
        largest = max(
            (
                amount
                for amount in range(1, 12)  # no capacity is larger
                if not self.model.blockers(project, {"gpu": amount})
                and any(  # a provider whose pod has room within its limits
                    fits(name, {"gpu": amount}) and not self.places.is_pod_limited(project, name, {"gpu": amount})
                    for name in providers
                )
            ),
            default=0,
        )
        assert headroom.fits == largest, headroom
        serving = {self.places.provider_of(name, "gpu") for name in providers if provider == ANY}
        free = [self.free_at(name, "gpu") for name in serving.union(providers)]
        assert headroom.free_total == sum(free), headroom
        bundle = {"gpu": 1 + self.steps % 2, "fpga": 1}
        number = self.engine.how_many(base.ADMIN, bundle, project, provider=provider).number
        assert number == self.count_bundles(project, bundle, provider), number
        return headroom

    def free_at(self, provider: str, resource: str) -> int:
        if (provider, resource) not in self.places.inventories:
            return 0
        return max(0, self.places.free(provider, resource))

    def count_bundles(self, project: str, bundle: dict[str, int], provider: str) -> int:
        """Claim bundles in a copy of the model until one is refused: first at the hosts that need the pool least."""
        places = copy.deepcopy(self.places)
        number = 0
        while True:
            try:
                rows = places.reserve(project, None, bundle, None, provider)
            except (exceptions.OverQuota, exceptions.OverCapacity):
                return number
            number += 1
            if provider == ANY:
                lacking = {
                    host: [one for one in sorted(bundle) if places.provider_of(host, one) != host]
                    for host in HOSTS
                    if places.fits_host(host, bundle) and not places.is_pod_limited(project, host, bundle)
                }
                chosen = min(lacking, key=lambda host: (len(lacking[host]), lacking[host]))
                for row in rows:
                    row.provider = places.provider_of(chosen, row.resource)

    @stateful.invariant()
    def history_gives_what_is_stored(self) -> None:
        found = history_replay.differences(self.engine)
        assert [one for one in found if one.key[0] != "project"] == []  # (the tree is planted with SQL)

    @stateful.invariant()
    def capacity_is_the_models(self) -> None:
        """C1 and C3, against the model's rows; C2 holds because both sides refuse the same claims."""
        records = {(record.provider, record.resource): record for record in self.capacity.list_inventories(base.ADMIN)}
        expected = {key: (self.places.capacity(*key), self.places.used(*key)) for key in self.places.inventories}
        assert {key: (record.capacity, record.used) for key, record in records.items()} == expected
        stored: Any = [
            (row.project_id, row.resource, row.delta, row.state, row.provider or "")
            for row in self.engine.list_reservations(base.ADMIN)
        ]
        rows = [(row.project, row.resource, row.delta, row.state, row.provider or "") for row in self.model.rows]
        assert sorted(stored) == sorted(rows)


class TestCapacityModel(base.BackendTestCase):
    def test_histories(self) -> None:
        # A server may choose for ANY again at once after a claim in a pod.
        self.useFixture(MonkeyPatch("cyborg_quota.capacity.claims._MAX_CACHED_SECONDS", 0.0))
        histories.run(CapacityHistories, EXAMPLES[self.backend] * fixtures.MORE, seed=SEED, backend=self.backend)
