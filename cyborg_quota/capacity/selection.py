# SPDX-License-Identifier: Apache-2.0
"""Selection plug-ins: which of the providers that fit takes a claim with provider ANY. Pure: no I/O.

Loaded by stevedore from the namespace ``cyborg_quota.selections``: [capacity] selection.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

from cyborg_quota.capacity.tables import Candidate, Order


class ProviderSelection(abc.ABC):
    """Ranks candidates, of which each fits the whole claim."""

    order: ClassVar[Order]
    """The order in which the database returns candidates. ``_CANDIDATES`` of them (claims.py) are read,
    and one more for each claim of the call that takes the same amounts."""

    @abc.abstractmethod
    def rank(self, candidate: Candidate, amounts: Mapping[str, int]) -> int:
        """The candidate with the lowest rank takes the claim. ``amounts``: the claim, by resource.

        Among equal candidates, one is taken at random, so that concurrent calls do not all wait for the same inventory.
        This is called again for a candidate that has taken another claim of the call: what is free there is then less.
        """


def _left(candidate: Candidate, amounts: Mapping[str, int]) -> int:
    """What would remain free of the claimed resources."""
    return sum(candidate.free[resource] - amount for resource, amount in amounts.items())


class BestFit(ProviderSelection):
    """Leaves the least free, so that other providers can take large claims."""

    order: ClassVar[Order] = "least free"

    def rank(self, candidate: Candidate, amounts: Mapping[str, int]) -> int:
        return _left(candidate, amounts)


class Spread(ProviderSelection):
    """Leaves the most free, so that the claims are on as many providers as possible."""

    order: ClassVar[Order] = "most free"

    def rank(self, candidate: Candidate, amounts: Mapping[str, int]) -> int:
        return -_left(candidate, amounts)


class First(ProviderSelection):
    """Fills the providers in the order in which they were added."""

    order: ClassVar[Order] = "provider"

    def rank(self, candidate: Candidate, amounts: Mapping[str, int]) -> int:  # noqa: ARG002
        return candidate.provider_id
