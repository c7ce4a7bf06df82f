# SPDX-License-Identifier: Apache-2.0
"""``.. commands:: cyborg-quota``: the commands of the program, each with its arguments.

cliff's own directive finds only commands that are entry points.
"""

from __future__ import annotations

from typing import Any

from cliff.sphinxext import AutoprogramCliffDirective

from cyborg_quota.cli import main


class Commands(AutoprogramCliffDirective):
    """Renders each command as a section. The argument is the name of the program."""

    def run(self) -> Any:
        self.options["application"] = self.arguments[0]
        return super().run()

    def _load_commands(self) -> dict[str, Any]:
        manager = main.Shell().command_manager
        own = (words for words, _ in manager if words not in ("help", "complete"))
        return {words: self._load_command(manager, words) for words in own}


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
