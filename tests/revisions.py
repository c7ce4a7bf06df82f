# SPDX-License-Identifier: Apache-2.0
"""The schema of a future release, and the scripts of this one."""

from __future__ import annotations

import functools
import pathlib
import shutil
import unittest
from collections.abc import Callable
from unittest import mock

import alembic.config
import alembic.script
import sqlalchemy as sa

from cyborg_quota.db import schema


def with_one_more(directory: pathlib.Path, revision: str, text: str) -> Callable[..., alembic.config.Config]:
    """Copy our migrations into the directory, and add one; returns the future release's ``schema.alembic_config``."""
    migrations = directory / "migrations"
    shutil.copytree(pathlib.Path(schema.__file__).parent / "migrations", migrations)
    (migrations / f"versions/{revision}_next.py").write_text(text)
    make_config = schema.alembic_config

    def config(connection: sa.Connection | None = None) -> alembic.config.Config:
        made = make_config(connection)
        made.set_main_option("script_location", str(migrations))
        return made

    return config


_read = alembic.script.ScriptDirectory.from_config
_own_config = schema.alembic_config()


def share_scripts(test: unittest.TestCase) -> None:
    """Let all upgrades of a test, also in forked processes, use scripts that this process has read once."""
    patched = mock.patch.object(alembic.script.ScriptDirectory, "from_config", _shared)
    patched.start()
    test.addCleanup(patched.stop)


def _shared(config: alembic.config.Config) -> alembic.script.ScriptDirectory:
    locations = {one.get_main_option("script_location") for one in (config, _own_config)}
    return _own_scripts() if len(locations) == 1 else _read(config)


@functools.cache
def _own_scripts() -> alembic.script.ScriptDirectory:
    scripts = _read(_own_config)
    list(scripts.walk_revisions())
    return scripts
