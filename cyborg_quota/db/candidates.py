# SPDX-License-Identifier: Apache-2.0
"""The providers among which a claim with ANY chooses: pure rules. inventories.find_candidates reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

Order = Literal["least free", "most free", "provider"]
"""The order in which ``find_candidates`` returns providers."""


class Candidate(NamedTuple):
    """A provider that fits a claim: its id, by resource the id of the inventory and what is free there, its pod."""

    provider_id: int
    inventory_ids: Mapping[str, int]
    free: Mapping[str, int]
    pod: str | None = None


def largest_first(amounts: Mapping[str, int]) -> list[str]:
    """The resources; the first one is that by which candidates are ordered."""
    return sorted(amounts, key=lambda resource: (-amounts[resource], resource))


STARTS: Final = 2**20
"""The number of different starts among the providers."""


def with_random_equals(
    found: list[Candidate],
    read: Callable[[Mapping[str, int]], list[Candidate]],
    amounts: Mapping[str, int],
    order: Order,
    limit: int,
) -> list[Candidate]:
    """``found``, or random ones of the equally good candidates if there are more than ``limit``.

    ``read`` runs ``candidates_statement`` with ``is_equal`` and these parameters.
    """
    resource = largest_first(amounts)[0]
    if order == "provider" or len(found) < limit or found[0].free[resource] != found[-1].free[resource]:
        return found
    equal = read({"b_free": found[0].free[resource], "b_start": random.randrange(STARTS)})
    known = {one.provider_id for one in equal}
    return [*equal, *(one for one in found if one.provider_id not in known)][:limit]
