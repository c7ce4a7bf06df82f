# SPDX-License-Identifier: Apache-2.0
"""The table of all operations: each subject contributes its own."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Final

from cyborg_quota.surface.operations import Operation

_SUBJECTS: Final = ("limits", "ledger", "capacity", "pods", "hours")


@functools.cache
def operations() -> Mapping[str, Operation]:
    """The operations, by the words of their commands. A subject whose folder does not exist contributes none."""
    present = [name for name in _SUBJECTS if importlib.util.find_spec(f"cyborg_quota.{name}")]
    modules = [importlib.import_module(f"cyborg_quota.{name}.operations") for name in present]
    return {operation.words: operation for module in modules for operation in module.OPERATIONS}
