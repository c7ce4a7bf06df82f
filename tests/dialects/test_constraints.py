# SPDX-License-Identifier: Apache-2.0
"""The constraints of the tables, which hold for every client."""

from __future__ import annotations

import itertools

import sqlalchemy as sa

from tests import base

USAGE: dict[str, object] = {
    "project_id": "p",
    "resource": "gpu",
    "pod": "",
    "reserved": 0,
    "used": 0,
    "subtree": 0,
    "generation": 0,
}
ROW: dict[str, object] = {
    "uuid": "u", "usage_id": 1, "project_id": "p", "resource": "gpu", "delta": 1, "state": "reserved",
    "deleted": False, "live": 1, "consumer_id": "c",
}  # fmt: skip
BINDING: dict[str, object] = {
    "project_id": "p", "availability_zone": "", "affinity_hash": "", "current": 1, "pod": "p1",
    "resource_affinity": "{}", "starts_at": "2001-01-01 00:00:00", "reason": "first",
}  # fmt: skip
REPLAY: dict[str, object] = {"digest": "d", "line": 0, "position": 0}
STATES = ("reserved", "committed", "rolled_back", "expired", "released")


class TestConstraints(base.LedgerTestCase):
    """The constraints of the tables, each tried with plain SQL."""

    def insert(self, table: str, values: dict[str, object]) -> None:
        columns = ", ".join(values)
        self.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join(f':{name}' for name in values)})", **values)

    def refused(self, table: str, values: dict[str, object], *words: str) -> None:
        error = self.assertRaises(sa.exc.DBAPIError, self.insert, table, values)
        self.assertTrue(any(word in str(error.orig) for word in words), str(error.orig))

    def test_columns(self) -> None:
        changes: list[tuple[str, dict[str, object], dict[str, object], str]] = [
            *(("quota_usages", USAGE, {counter: -1}, f"ck_quota_usages_{counter}") for counter in ("reserved", "used")),
            ("quota_usages", USAGE, {"subtree": -1}, "ck_quota_usages_subtree"),
            *(("quota_usages", USAGE, {column: None}, column) for column in USAGE),
            *(("reservations", ROW, {column: None}, column) for column in ROW if column not in ("live", "consumer_id")),
            ("reservations", ROW, {"state": "lost"}, "ck_reservations_"),
            *(("reservations", ROW, {"delta": delta}, "ck_reservations_delta") for delta in (0, -1)),
            # (NULL would be ignored by the key.)
            *(("pod_bindings", BINDING, {column: None}, column) for column in ("availability_zone", "affinity_hash")),
        ]
        for table, row, change, word in changes:
            self.refused(table, row | change, word)

    def test_unique_keys(self) -> None:
        """Two rows with the same key, of which the second is refused, and others that are different."""
        usage_key = "quota_usages.project_id, quota_usages.pod, quota_usages.resource"
        usages = ({"resource": "GPU"}, {"project_id": "P"}, {"pod": "p1"}, {"pod": "P1"})
        keys = ({"availability_zone": "z"}, {"affinity_hash": "h"})
        ended = ({"current": None}, {"current": None})  # they are not in the key
        for table, row, same, words, others in (
            ("quota_usages", USAGE, {}, ("uq_quota_usages_project_pod_resource", usage_key), usages),
            ("reservations", ROW, {"consumer_id": "d"}, ("uq_reservations_uuid", "reservations.uuid"), ()),
            (
                "pod_bindings",
                BINDING,
                {"pod": "p2"},
                ("uq_pod_bindings_current", "pod_bindings.current"),
                ended + keys,
            ),
            ("projects", {"project_id": "p", "generation": 0}, {}, ("projects", "PRIMARY"), ({"project_id": "P"},)),
            ("replays", REPLAY, {}, ("replays", "PRIMARY"), ({"digest": "D"},)),
        ):
            self.insert(table, row)
            self.refused(table, row | same, *words)
            for other in others:
                self.insert(table, row | other)

    def test_deleted_and_live_follow_the_state(self) -> None:
        allowed = 0
        for number, (state, deleted, live) in enumerate(itertools.product(STATES, (False, True), (None, 0, 1, 2))):
            row = ROW | {
                "uuid": str(number), "consumer_id": str(number),
                "state": state, "deleted": deleted, "live": live,
            }  # fmt: skip
            is_live = state in ("reserved", "committed")
            if (deleted, live) == ((False, 1) if is_live else (True, None)):
                self.insert("reservations", row)
                allowed += 1
            else:
                self.refused("reservations", row, "ck_reservations_ended")
        self.assertEqual(len(STATES), allowed)

    def test_one_live_consumer(self) -> None:
        """The key covers live rows with a consumer only."""
        key = ("uq_reservations_live_consumer", "reservations.consumer_id")
        ended = {"state": "expired", "deleted": True, "live": None}
        self.insert("reservations", ROW)
        for state in ("reserved", "committed"):
            self.refused("reservations", ROW | {"uuid": "2", "state": state}, *key)
        for number, other in enumerate(
            (
                ended,
                ended,
                {"consumer_id": "C"},
                {"project_id": "P"},
                {"resource": "GPU"},
                {"consumer_id": None},
                {"consumer_id": None},
            )
        ):
            self.insert("reservations", ROW | {"uuid": f"other {number}"} | other)
        self.execute("UPDATE reservations SET state = 'released', deleted = TRUE, live = NULL WHERE uuid = 'u'")
        self.insert("reservations", ROW | {"uuid": "again"})
