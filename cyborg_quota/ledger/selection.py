# SPDX-License-Identifier: Apache-2.0
"""Selection plug-ins: which of the providers that fit takes a claim with provider ANY. Pure: no I/O.

Loaded by stevedore from the namespace ``cyborg_quota.selections``: [capacity] selection.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import ClassVar

from cyborg_quota.db.candidates import Candidate, Order


class ProviderSelection(abc.ABC):
    """Chooses among candidates, of which each fits the whole claim."""

    order: ClassVar[Order]
    """The order in which the database returns candidates. ``_CANDIDATES`` of them (capacity_claims.py) are read,
    and one more for each claim of the call."""

    @abc.abstractmethod
    def best(self, candidates: Sequence[Candidate], amounts: Mapping[str, int]) -> Sequence[Candidate]:
        """The candidates that are best for the claim, all of them equally good.

        The caller takes one of them at random, so that concurrent calls do not all wait for the same inventory.
        ``amounts``: the claim, by resource. ``candidates`` is not empty, and neither is the result.
        """


def _left(candidate: Candidate, amounts: Mapping[str, int]) -> int:
    """What would remain free of the claimed resources."""
    return sum(candidate.free[resource] - amount for resource, amount in amounts.items())


class BestFit(ProviderSelection):
    """Leaves the least free, so that other providers can take large claims."""

    order: ClassVar[Order] = "least free"

    def best(self, candidates: Sequence[Candidate], amounts: Mapping[str, int]) -> Sequence[Candidate]:
        left = [_left(candidate, amounts) for candidate in candidates]
        least = min(left)
        return [candidate for candidate, remains in zip(candidates, left, strict=True) if remains == least]


class Spread(ProviderSelection):
    """Leaves the most free, so that the claims are on as many providers as possible."""

    order: ClassVar[Order] = "most free"

    def best(self, candidates: Sequence[Candidate], amounts: Mapping[str, int]) -> Sequence[Candidate]:
        left = [_left(candidate, amounts) for candidate in candidates]
        most = max(left)
        return [candidate for candidate, remains in zip(candidates, left, strict=True) if remains == most]


class First(ProviderSelection):
    """Fills the providers in the order in which they were added."""

    order: ClassVar[Order] = "provider"

    def best(self, candidates: Sequence[Candidate], amounts: Mapping[str, int]) -> Sequence[Candidate]:  # noqa: ARG002
        return [min(candidates, key=lambda candidate: candidate.provider_id)]
