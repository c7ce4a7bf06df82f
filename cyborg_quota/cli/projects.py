# SPDX-License-Identifier: Apache-2.0
"""Names of projects on the command line: resolved with Keystone, if [oslo_limit] has credentials for it.

Commands only declare their arguments (see arguments.py). base.py calls ``resolve`` before a command runs, so that
take_action finds ids in the arguments of _NAMED.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from oslo_log import log as logging

from cyborg_quota import exceptions, validation
from cyborg_quota.cli.errors import BadUsage
from cyborg_quota.surface import formats

if TYPE_CHECKING:
    from cyborg_quota.cli.main import Shell
    from cyborg_quota.limits.sources.keystone_projects import ProjectDirectory

LOG = logging.getLogger(__name__)

_NAMED: Final = ("project_id", "parent_id", "child_id", "to_project")

_LOOKS_LIKE_ID: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def require_directory(shell: Shell, what: str) -> ProjectDirectory:
    """The projects of Keystone. Raises BadUsage if Keystone is not configured; ``what`` needs it."""
    if not shell.uses_keystone:
        raise BadUsage(
            f"{what} needs Keystone: set its URL and credentials in [oslo_limit] (auth_type, auth_url, ...)."
        )
    return shell.directory


def resolve(shell: Shell, parsed: argparse.Namespace) -> None:
    """Replace the names in the arguments of _NAMED by ids. Raises UnknownProject, AmbiguousProject."""
    for name in _NAMED:
        if getattr(parsed, name, None) is None:
            continue
        text = validation.check_name("project_id", getattr(parsed, name))
        checked = name in ("project_id", "child_id") and "force_project" in parsed
        if not (checked and parsed.force_project):
            text = _resolve(shell, text, checked=checked)
        setattr(parsed, name, text)


def _resolve(shell: Shell, text: str, *, checked: bool) -> str:
    """The id of a project given by id or name. ``checked``: Keystone must know it; otherwise the ledger suffices.

    An id that the ledger has needs no request, so that commands work on it while Keystone is unavailable, and after
    Keystone has deleted the project.
    """
    if (not checked and _LOOKS_LIKE_ID.fullmatch(text)) or not shell.uses_keystone:
        return text
    if not checked and shell.engine.limits.is_known_project(shell.context, text):
        return text
    try:
        return shell.directory.find(text).project_id
    except exceptions.UnknownProject:
        hint = "If it is the id of a project nevertheless, add --force." if checked else ""
        raise exceptions.UnknownProject(text, hint=hint) from None
    except exceptions.ProjectLookupFailed as error:
        hint = "To use an id without Keystone, add --force." if checked else ""
        raise exceptions.ProjectLookupFailed(error.reason, hint=hint) from None


def new_project_notice(shell: Shell, parsed: argparse.Namespace) -> str | None:
    """A line for stderr if `set` is about to set the first limit of a project that Keystone has not confirmed.

    Without Keystone, a mistyped id is not an error: the limit is set for a project that does not exist.
    """
    if parsed.project_id is None or (shell.uses_keystone and not parsed.force_project):
        return None
    is_known = shell.engine.limits.is_known_project(shell.context, parsed.project_id)
    return None if is_known else f"Project {parsed.project_id!a} is new: it had no usage, limit or parent before."


def with_names(shell: Shell, column_names: Sequence[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """The table with a column of names after that of the ids. Names that Keystone does not have are None."""
    directory = require_directory(shell, "--names")
    if "project_id" not in column_names:
        raise BadUsage("--names: this table has no projects.")
    index = list(column_names).index("project_id")
    ids = formats.machine(row[index] for row in rows)
    try:
        known = directory.names({project_id for project_id in ids if project_id is not None})
    except exceptions.ProjectLookupFailed as error:
        LOG.warning("The names of the projects are unknown: %s", error)
        known = {}
    named = [
        [*row[: index + 1], formats.Optional(known.get(project_id)), *row[index + 1 :]]
        for row, project_id in zip(rows, ids, strict=True)
    ]
    return [*column_names[: index + 1], "project_name", *column_names[index + 1 :]], named
