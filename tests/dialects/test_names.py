# SPDX-License-Identifier: Apache-2.0
"""Names are stored and compared byte by byte."""

from __future__ import annotations

import random
import unicodedata

from tests import base


class TestNames(base.LedgerTestCase):
    def test_the_longest(self) -> None:
        """Names that no index can compress, in every column of one row: 255 characters, of at most 765 bytes."""
        dice = random.Random(7)
        for first, count in ((0x4E00, 255), (0x20000, 191)):
            project_id, consumer, group, resource = (
                "".join(chr(first + dice.randrange(0x5000)) for _ in range(count)) for _ in range(4)
            )
            self.quotas.register_resource(resource)
            context = base.Context(project_id)
            self.quotas.reserve(context, {resource: 1}, consumer=consumer, group=group)
            self.quotas.commit(context, group=group)
            (row,) = self.quotas.list_reservations(base.ADMIN, project_id)
            self.assertEqual(
                (project_id, resource, consumer, group, "committed"),
                (row.project_id, row.resource, row.consumer, row.group, row.state),
            )

    def test_compared_by_code_points(self) -> None:
        """No database folds the case, trims or normalizes: each of these names is distinct, in every argument."""
        names = [
            "abc", "ABC", "Abc",
            unicodedata.normalize("NFC", "e\u0301"), unicodedata.normalize("NFD", "e\u0301"),
            "\u00df", "ss", "a", "\u00e1", "\u0131", "i", "I", "\uff41", "\U0001f600", "\U0001f601",
            "a\u200bb", "ab", "a_b", "a%b", "a b", "a\u00a0b",
        ]  # fmt: skip
        for amount, name in enumerate(names, 1):
            self.engine.register_resource(name)
            self.engine.reserve(base.Context(name), {"gpu": amount})
            self.engine.reserve(base.Context("one"), {name: amount})
            self.engine.reserve(self.context, {"gpu": amount}, consumer="c " + name, group="g " + name)

        self.assert_invariants()
        for amount, name in enumerate(names, 1):
            self.assertEqual((0, amount), self.figures(name, "gpu"))
            self.assertEqual((0, amount), self.figures("one", name))
            for named in ({"consumer": "c " + name}, {"group": "g " + name}):
                (row,) = self.engine.list_reservations(base.ADMIN, **named)
                self.assertEqual(amount, row.delta)
