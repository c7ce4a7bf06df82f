# SPDX-License-Identifier: Apache-2.0
"""Names, amounts and expiries, without a database."""

from __future__ import annotations

import datetime
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from oslotest import base

from cyborg_quota import exceptions, validation
from cyborg_quota.types import MAX_NAME_BYTES, MAX_NAME_CHARS

SECOND = datetime.timedelta(seconds=1)


class TestNames(base.BaseTestCase):
    @given(st.text(max_size=300))
    def test_valid_names_can_be_stored_and_logged(self, text: str) -> None:
        try:
            name = validation.check_name("consumer", text)
        except exceptions.InvalidName as error:
            self.assertEqual(("consumer", text), (error.field, error.value))
            self.assertTrue(str(error).isascii() and str(error).isprintable())
            return
        self.assertEqual((text, str, text.strip(), [text]), (name, type(name), name, name.splitlines()))
        self.assertTrue(0 < len(name) <= MAX_NAME_CHARS)
        self.assertLessEqual(len(name.encode()), MAX_NAME_BYTES)
        self.assertFalse({unicodedata.category(char) for char in name} & {"Cc", "Cs"})

    @given(st.text(st.characters(categories=("L", "N", "P", "S", "M")), min_size=1, max_size=190))
    def test_ordinary_text_passes_as_it_is(self, text: str) -> None:
        self.assertEqual(text, validation.check_name("group", text))
