# SPDX-License-Identifier: Apache-2.0
"""The schema of a future release."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable

import alembic.config
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
