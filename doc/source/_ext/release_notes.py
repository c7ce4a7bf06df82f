# SPDX-License-Identifier: Apache-2.0
"""``.. release-notes::``: the notes in releasenotes/news, by section.

reno's own directive reads the history of git, which a plain copy of the tree does not have.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

SECTIONS = {
    "features": "New features",
    "issues": "Known issues",
    "upgrade": "Upgrade notes",
    "deprecations": "Deprecations",
    "critical": "Critical issues",
    "security": "Security issues",
    "fixes": "Bug fixes",
    "other": "Other notes",
}
"""The sections of reno, in its order."""


class ReleaseNotes(SphinxDirective):
    """Renders each section with an entry for each note, in the order of the file names."""

    def run(self) -> list[nodes.Node]:
        directory = pathlib.Path(self.env.srcdir).parents[1] / "releasenotes/news"
        paths = sorted(directory.glob("*.yaml"))
        for path in (directory, *paths):
            self.env.note_dependency(str(path))
        notes = [yaml.safe_load(path.read_text()) for path in paths]
        container = nodes.section()
        container.document = self.state.document
        self.state.nested_parse(StringList(list(_lines(notes)), source=str(directory)), 0, container, match_titles=True)
        return container.children


def _lines(notes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    unknown = {section for note in notes for section in note} - {"prelude", *SECTIONS}
    assert not unknown, f"there is no section {unknown}"
    for note in notes:
        if "prelude" in note:
            yield from (*str(note["prelude"]).splitlines(), "")
    for section, title in SECTIONS.items():
        texts = [text for note in notes for text in note.get(section, ())]
        if texts:
            yield from (title, "=" * len(title), "")
        for text in texts:
            first, *rest = str(text).strip().splitlines()
            yield from (f"* {first}", *(f"  {line}".rstrip() for line in rest), "")


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("release-notes", ReleaseNotes)
    return {"parallel_read_safe": True}
