# SPDX-License-Identifier: Apache-2.0
"""The arguments of the calls that charge; the engine makes them after it has checked each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cyborg_quota.types import RESERVED, Claim, State


class ReserveRequest(NamedTuple):
    """The arguments of a reserve; of an adoption, which is committed without checking limits: without a lifetime."""

    project_id: str
    claims: Sequence[Claim]
    group: str | None
    ttl_microseconds: int | None
    sees_all: bool
    """Whether the caller may see the usage of ancestors."""
    state: State = RESERVED


class ResizeRequest(NamedTuple):
    """The arguments of a resize. ``expected``: the amounts that must be held, by resource; may be empty."""

    project_id: str
    consumer: str
    amounts: Mapping[str, int]
    expected: Mapping[str, int]
    sees_all: bool


class TransferRequest(NamedTuple):
    """The arguments of a transfer: two different projects, and the consumer whose live reservations it moves."""

    sender: str
    receiver: str
    consumer: str
