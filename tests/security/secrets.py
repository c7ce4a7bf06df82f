# SPDX-License-Identifier: Apache-2.0
"""Searches for a password in all output.

The password consists of words that occur nowhere else, separated by all characters at which a URL, a configuration file
or a shell may split it: any part of it is found, in any encoding.
"""

from __future__ import annotations

import logging
import os
import re
import urllib.parse

import fixtures as fx

from tests.cli import base

WORDS = ("xyzzyx", "plughp", "frotzf", "wheezw")
PASSWORD = "@".join(WORDS[:2]) + "/%&$" + "=+ ".join(WORDS[2:])
QUOTED = urllib.parse.quote(PASSWORD, safe="")
BARE = "@".join(WORDS[:2]) + "/" + ":".join(WORDS[2:])
"""As it is written by a user who does not know that it must be quoted."""


def pieces_in(text: str | bytes) -> list[str]:
    """Return the words of the password that occur in a text, in any encoding."""
    shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    forms = (shown, urllib.parse.unquote_plus(shown), re.sub(r"\s+", "", shown), shown.replace("\0", ""))
    return sorted({word for word in WORDS for form in forms if word in form.lower()})


class SecretsTestCase(base.CliTestCase):
    """Records the logs of all libraries at every level, besides the printed output."""

    scenarios: list[tuple[str, dict[str, object]]] = []

    def setUp(self) -> None:
        super().setUp()
        # A configuration without a database uses a file in the current directory.
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.directory)
        self.log = self.useFixture(fx.FakeLogger(level=logging.DEBUG, nuke_handlers=False))
        # SQLAlchemy's pool logs its connections only if that is enabled before the engine is made.
        for name in ("sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "keystoneauth", "urllib3"):
            logger = logging.getLogger(name)
            self.addCleanup(logger.setLevel, logger.level)
            logger.setLevel(logging.DEBUG)

    def assert_hidden(self, *argv: str) -> base.Ended:
        """Run a command, and assert that no part of the password is in any output. Returns how the command ended."""
        return self._hidden(argv, self.call(*argv))

    def assert_hidden_by_the_expirer(self, *argv: str) -> int:
        return self._hidden(argv, self.call_expirer("--once", *argv)).status

    def _hidden(self, argv: tuple[str, ...], ended: base.Ended) -> base.Ended:
        for where, text in (("stdout", ended.out), ("stderr", ended.err), ("log", self.new_log())):
            lines = [line for line in text.splitlines() if pieces_in(line)]
            self.assertEqual(([], []), (pieces_in(text), lines), f"{argv}: {where}")
        return ended

    def new_log(self) -> str:
        """Return what was logged since the last call: a search of the whole log for each command takes longer."""
        text = str(self.log.output)
        self.log.reset_output()
        assert not self.log.output, "this also sets the position of the next record"
        return text


QUICK = "[quota]\nretry_seconds = 0\nconnect_timeout = 1\n"
