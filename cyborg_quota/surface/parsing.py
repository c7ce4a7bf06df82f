# SPDX-License-Identifier: Apache-2.0
"""Parses the values of arguments. A value that is invalid is an error of argparse, on one line."""

from __future__ import annotations

import argparse
import functools
import re
from typing import Final

from cyborg_quota.types import MAX_AMOUNT, MAX_LIMIT

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def integer(text: str, least: int, most: int = MAX_AMOUNT) -> int:
    """Parse an integer from ``least`` to ``most``."""
    if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: write an integer from {least} to {most}")
    return int(text)


positive: Final = functools.partial(integer, least=1)


def amount(text: str) -> tuple[str, int]:
    """Parse ``gpu.A100=2`` into (resource, integer), splitting at the last ``=``."""
    return _pair(text, "RESOURCE=AMOUNT, as in gpu=2", MAX_AMOUNT)


def _pair(text: str, form: str, most: int) -> tuple[str, int]:
    resource, equals, number = text.rpartition("=")
    if not equals or not resource or not _INTEGER.fullmatch(number):
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: write {form}")
    if abs(int(number)) > most:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: at most {most}")
    return resource, int(number)


def limit(text: str) -> tuple[str, int]:
    """Parse ``gpu=50`` into (resource, limit): -1 is unlimited, 0 allows nothing."""
    resource, number = _pair(text, "RESOURCE=LIMIT, as in gpu=20", MAX_LIMIT)
    if number < -1:
        raise argparse.ArgumentTypeError(f"{abbreviated(text)}: -1 is unlimited, 0 allows nothing")
    return resource, number


def abbreviated(text: str) -> str:
    """A value for a message: quoted, in ASCII, at most about 80 characters."""
    return ascii(text if len(text) <= 80 else text[:77] + "...")
