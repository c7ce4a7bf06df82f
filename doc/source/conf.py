# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built: ``sphinx-build -W doc/source doc/build/html``, from a clone or a plain copy."""

from __future__ import annotations

import ast
import logging
import pathlib
import sys
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import cyborg_quota

sys.path.insert(0, str(pathlib.Path(__file__).with_name("_ext")))

project = "cyborg_quota"
copyright = "cyborg_quota contributors"
version = release = cyborg_quota.__version__

extensions = [
    "cliff.sphinxext",
    "commands",
    "openapi",
    "openstackdocstheme",
    "oslo_config.sphinxext",
    "release_notes",
    "sphinx.ext.autodoc",
]
exclude_patterns = ["_ext", "examples"]
templates_path = ["_templates"]
smartquotes = False  # smart quotes would turn the two hyphens of --option into an en dash

# Options that every listing command has; cli.rst documents them once.
autoprogram_cliff_ignored = [
    "--help",
    "--format",
    "--column",
    "--quote",
    "--noindent",
    "--prefix",
    "--max-width",
    "--fit-width",
    "--print-empty",
    "--sort-column",
    "--sort-ascending",
    "--sort-descending",
]

# The signatures of the public interface are long, so each parameter gets its own line.
maximum_signature_line_length = 90
autodoc_member_order = "bysource"
# The side bar is too narrow for the names of classes before those of their methods.
toc_object_entries_show_parents = "hide"
autodoc_preserve_defaults = True

html_theme = "openstackdocs"
html_theme_options = {"display_badge": False, "show_other_versions": False, "analytics_tracking_code": ""}
html_static_path = ["_static"]
html_css_files = ["docs.css"]
html_copy_source = False
openstackdocs_auto_name = False
openstackdocs_auto_version = False
openstackdocs_pdf_link = False
openstackdocs_repo_name = ""
openstackdocs_bug_project = ""


def _is_not_missing_git(record: logging.LogRecord) -> bool:
    return "cannot get gitsha" not in str(record.msg)


# The theme asks git for the commit and warns if there is no repository. The build does not need one.
logging.getLogger("sphinx.openstackdocstheme.ext").addFilter(_is_not_missing_git)


class Modules(SphinxDirective):
    """``.. modules:: FOLDER...``: the modules of folders of cyborg_quota, each with the first sentence of its docs."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        package, shown = pathlib.Path(cyborg_quota.__file__).parent, []
        for folder in self.arguments[0].split():
            entries = nodes.bullet_list()
            for path in sorted((package / folder).glob("*.py")):
                self.env.note_dependency(str(path))
                summary = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split()).partition(". ")[0]
                if summary:
                    name = nodes.literal(text=path.relative_to(package).as_posix())
                    line = nodes.paragraph("", "", name, nodes.Text(f": {summary.replace('``', '').rstrip('.')}"))
                    entries += nodes.list_item("", line)
            shown += [nodes.rubric(text=folder), entries]
        return shown


def setup(app: Any) -> None:
    app.add_directive("modules", Modules)
