# SPDX-License-Identifier: Apache-2.0
"""All ledgers of a test process share their compiled statements: compiling them takes a quarter of the tests' time.

SQLAlchemy keeps them for each engine, and each test makes engines of its own.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cyborg_quota.db import connect
from tests import kept_connections

_make_engine = connect.make_engine


class _Shared(dict[Any, Any]):
    """Takes SQLAlchemy's keys, whose first part is the dialect: engines of one kind and version share the entries."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_shared_key(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_shared_key(key), value)


def _shared_key(key: Any) -> Any:
    dialect, *rest = key
    return (type(dialect), dialect.server_version_info, *rest)


_shared = _Shared()


def share() -> None:
    """Let all engines that are made from now on share them; repeated calls do nothing."""
    connect.make_engine = _make_shared


def _make_shared(*arguments: Any) -> sa.Engine:
    engine = _make_engine(*arguments)
    kept_connections.share(engine)
    engine.update_execution_options(compiled_cache=_shared)
    return engine


def unshare(engine: sa.Engine) -> None:
    """Let this engine keep its own, as in production."""
    engine.update_execution_options(compiled_cache=engine._compiled_cache)
