# SPDX-License-Identifier: Apache-2.0
"""Finds options that nothing reads, by the rules of oslo-config-validator: oslo.config ignores them silently.

A misspelled ``[limits] drivr = database`` would leave the default driver in force, which limits nothing.
"""

from __future__ import annotations

import glob
import importlib.metadata
import itertools
from collections.abc import Iterator
from typing import Any, Final

from oslo_config import cfg

NAMESPACES: Final = ("cyborg_quota", "oslo.db", "oslo.limit", "oslo.log", "oslo.policy")
"""The entry points in oslo.config.opts whose options a configuration file of cyborg_quota may contain."""

_UNLISTED: Final = {
    "oslo_limit": {"auth_type", "auth_section"},
    "DEFAULT": {"transport_url", "control_exchange", "executor_thread_pool_size"},
}
"""Options of keystoneauth and oslo.messaging, which no namespace lists."""
_UNCHECKED: Final = (
    "oslo_messaging_", "placement", "accelerator", "keystone_authtoken", "cache", "cors", "healthcheck",
    "oslo_middleware",
)  # fmt: skip
"""Groups that are not checked: to list the options of oslo.messaging, eventlet would be imported; those of keystoneauth
depend on the auth_type; the others belong to the middleware of the REST API, which is not installed everywhere."""


def find(conf: cfg.ConfigOpts) -> list[str]:
    """Compare the files that ``conf`` was read from with the options that exist.

    The options are those of NAMESPACES, and those that are registered on ``conf`` (by a limit driver of another
    package, for example). Returns sentences without a full stop. They contain names only: a value may be a password.
    """
    known = _options()
    return [
        f"[{group}] {name} in {path} is no option"
        for path, group, name in _in_files(conf)
        if not (group.startswith(_UNCHECKED) or name in known.get(group, ()) or _is_registered(conf, group, name))
    ]


def _options() -> dict[str, set[str]]:
    """The names of all options by group, with the deprecated ones (oslo.config logs a warning when it reads these)."""
    known: dict[str, set[str]] = {group: set(names) for group, names in _UNLISTED.items()}
    for point in importlib.metadata.entry_points(group="oslo.config.opts"):
        if point.name not in NAMESPACES:
            continue
        for group, options in point.load()():
            group_name = _group(getattr(group, "name", group) or "DEFAULT")
            for option in options:
                known.setdefault(group_name, set()).update((option.name, option.dest))
                for old in option.deprecated_opts:
                    known.setdefault(_group(old.group or group_name), set()).add(old.name or option.name)
    return known


def _in_files(conf: cfg.ConfigOpts) -> Iterator[tuple[str, str, str]]:
    files = [sorted(glob.glob(f"{glob.escape(directory)}/*.conf")) for directory in conf.config_dir or ()]
    for path in itertools.chain(conf.config_file or (), *files):
        sections: dict[str, Any] = {}
        cfg.ConfigParser(path, sections).parse()
        for section, options in sections.items():
            for name in options:
                yield path, _group(section), name


def _is_registered(conf: cfg.ConfigOpts, group: str, name: str) -> bool:
    if group == "DEFAULT":
        name = name.replace("-", "_")
        return name in conf and not isinstance(conf[name], cfg.ConfigOpts.GroupAttr)
    return group in conf and name.replace("-", "_") in conf[group]


def _group(name: str) -> str:
    return name if name == "DEFAULT" else name.lower()
