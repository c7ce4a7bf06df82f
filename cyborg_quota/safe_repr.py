# SPDX-License-Identifier: Apache-2.0
"""A value of a stranger's as a text that may stand in a message, a log or a terminal."""

from __future__ import annotations

from collections.abc import Mapping


def amounts(deltas: Mapping[str, int]) -> str:
    """{resource: delta} as ``gpu=2, fpga=1``."""
    return ", ".join(f"{resource}={delta}" for resource, delta in sorted(deltas.items()))


def safe_repr(value: object) -> str:
    """A value of a stranger's, safe to log: quoted, escaped, at most 80 characters."""
    try:
        text = ascii(value)
    except Exception:
        # An int of thousands of digits has no text, nor has what fails in its own __repr__.
        text = f"(a {type(value).__name__})"
    return text if len(text) <= 80 else text[:77] + "..."
