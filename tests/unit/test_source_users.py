# SPDX-License-Identifier: Apache-2.0
"""Which service owns the name of a source, without a ledger."""

from __future__ import annotations

from oslotest import base

from cyborg_quota.ledger.source_users import Users


class TestUsers(base.BaseTestCase):
    def test_the_first_one_owns_it(self) -> None:
        users = Users()
        self.assertTrue(users.is_only([1, 2]))
        users = users.registered([1, 2])
        self.assertEqual(Users((1, 2, 0, 0)), users)
        self.assertTrue(users.is_only([2]))
        self.assertFalse(users.is_only([3]))
        self.assertEqual(users, users.registered([1, 2]))

    def test_a_rival_blocks_both_until_one_leaves(self) -> None:
        users = Users().registered([1, 2]).registered([3, 4])
        self.assertEqual(Users((1, 2, 0, 0), (3, 0, 0, 0)), users)
        self.assertEqual(users, users.registered([4, 3]))
        self.assertEqual((False, False), (users.is_only([1, 2]), users.is_only([3, 4])))
        self.assertEqual((True, False), (users.left([3, 4]).is_only([1, 2]), users.left([3, 4]).is_only([3, 4])))
        vacated = users.left([1, 2])
        self.assertFalse(vacated.is_only([5]))  # the rival has not registered again
        self.assertEqual(Users((3, 4, 0, 0)), vacated.registered([3, 4]))

    def test_replaced(self) -> None:
        users = Users().registered([1]).registered([3])
        self.assertEqual(Users((3, 4, 0, 0)), users.registered([3, 4], replace=True))
        self.assertEqual(users, users.registered([], replace=True))

    def test_its_texts_change(self) -> None:
        """Some are replaced between two registrations, and more than fit are there."""
        users = Users().registered([1, 2, 3, 4, 5])
        self.assertEqual(Users((1, 2, 3, 4)), users)
        users = users.registered([2, 4, 5, 6])
        self.assertEqual(Users((5, 2, 6, 4)), users)
        self.assertTrue(users.is_only([5, 9]))

    def test_many_rivals(self) -> None:
        users = Users().registered([1])
        for number in range(2, 8):
            users = users.registered([number])
        self.assertEqual(Users((1, 0, 0, 0), (2, 3, 4, 5)), users)
        self.assertFalse(users.is_only([7]))

    def test_no_texts(self) -> None:
        """A Cyborg without device profiles: it owns nothing, and is not mistaken for the owner."""
        self.assertEqual(Users(), Users().registered([]))
        self.assertTrue(Users().is_only([]))
        self.assertFalse(Users().registered([1]).is_only([]))
