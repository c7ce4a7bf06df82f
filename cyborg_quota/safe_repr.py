# SPDX-License-Identifier: Apache-2.0
"""Text of untrusted values for messages, logs and terminals."""

from __future__ import annotations

from collections.abc import Mapping


def amounts(deltas: Mapping[str, int]) -> str:
    """Format {resource: delta} as ``fpga=1, gpu=2``."""
    return ", ".join(f"{resource}={delta}" for resource, delta in sorted(deltas.items()))


def safe_repr(value: object) -> str:
    """The representation of an untrusted value: quoted, in ASCII, at most 80 characters."""
    try:
        text = ascii(value)
    except Exception:
        # repr() fails for an int of more than 4300 digits, and for objects whose __repr__ raises.
        text = f"(a {type(value).__name__})"
    return text if len(text) <= 80 else text[:77] + "..."
