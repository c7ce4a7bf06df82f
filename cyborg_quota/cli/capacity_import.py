# SPDX-License-Identifier: Apache-2.0
"""capacity import: providers and inventories from a CSV file, from Placement or from Cyborg."""

from __future__ import annotations

import csv
import dataclasses
import decimal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

from cyborg_quota import exceptions, units, validation
from cyborg_quota.capacity.imports.changes import CapacityImporter, Change, WantedProvider
from cyborg_quota.cli import base
from cyborg_quota.cli.errors import BadUsage
from cyborg_quota.surface import arguments, formats
from cyborg_quota.surface.operations import Argument, Column, Operation, columns
from cyborg_quota.types.capacity import Inventory

COLUMNS: Final = (
    *columns("change", "provider"),
    *columns("resource", "before", cell=formats.Optional),
    Column("after"),
)
_REQUIRED: Final = ("provider", "resource", "total")
_INTEGERS: Final = ("reserved", "min_unit", "max_unit", "step_size")
_OF_PROVIDERS: Final = ("uuid", "parent", "pod", "can_host")
_ALL: Final = (*_REQUIRED, *_INTEGERS, "allocation_ratio", *_OF_PROVIDERS)


def _import(
    run: base.Run, file: str | None, source: str | None, progress: Callable[[int], object], **given: Any
) -> list[Change]:
    if (file is None) == (source is None):
        raise BadUsage("Give either a CSV file, or --from placement or --from cyborg.")
    capacity, counted = run.engine.capacity, [resource.name for resource in run.engine.list_resources()]
    if source is not None:
        try:
            from cyborg_quota.capacity.imports import plan
        except ImportError as error:
            raise exceptions.ConfigurationError(f"--from needs {error.name}: install cyborg_quota[keystone].") from None
        return plan.run(run.conf, capacity, counted, run.context, source, progress=progress, **given)
    if given["nested"]:
        raise BadUsage("--nested needs --from placement or --from cyborg; a file has the column parent.")
    providers = _read(str(file))
    importer = CapacityImporter(capacity, run.context, counted, reason=given["reason"], knows_use=False)
    return importer.run(lambda: providers, dry_run=given["dry_run"], progress=progress)


def _read(name: str) -> list[WantedProvider]:
    """The providers of the file, in its order. Raises BadUsage, which names the line."""
    try:
        if name == "-":
            sys.stdin.reconfigure(encoding="utf-8-sig", newline="")  # type: ignore[union-attr]
            return _parse(sys.stdin)
        with open(name, encoding="utf-8-sig", newline="") as file:
            return _parse(file)
    except OSError as error:
        raise BadUsage(f"{name!a} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadUsage(f"{name!a} is no CSV file in UTF-8: {error}.") from None


def _parse(file: TextIO) -> list[WantedProvider]:
    reader = csv.DictReader(file, strict=True)
    columns = list(reader.fieldnames or [])
    missing = [column for column in _REQUIRED if column not in columns]
    wrong = [column for column in columns if column not in _ALL]
    if missing or wrong or len(set(columns)) < len(columns):
        raise BadUsage(
            f"The first line must name the columns {', '.join(_REQUIRED)}, and may name {', '.join(_ALL[3:])}, each "
            f"once; it has {', '.join(ascii(column) for column in columns) or 'none'}."
        )
    first_lines: dict[str, int] = {}
    providers: dict[int, WantedProvider] = {}  # by their first lines
    for row in reader:
        line = reader.line_num
        if None in row or None in row.values():
            raise BadUsage(f"line {line}: it does not have {len(columns)} cells.")
        try:
            provider, inventory = _provider(row), {row["resource"]: _inventory(row)}
        except exceptions.InvalidRequest as error:
            raise BadUsage(f"line {line}: {error}") from None
        first = first_lines.setdefault(provider.name, line)
        inventories = providers.get(first, provider).inventories
        if dataclasses.replace(provider, inventories=inventories) != providers.get(first, provider):
            raise BadUsage(f"line {line}: {', '.join(_OF_PROVIDERS)} differ from those of line {first}.")
        if row["resource"] in inventories:
            raise BadUsage(f"line {line}: {row['provider']!a} has two inventories of {row['resource']!a}.")
        providers[first] = dataclasses.replace(provider, inventories={**inventories, **inventory})
    return list(providers.values())


def _provider(row: Mapping[str, str]) -> WantedProvider:
    """The provider of a line, without inventories. Raises InvalidRequest for what ``add_provider`` would refuse."""
    uuid, parent, pod, can_host = (row.get(column) or None for column in _OF_PROVIDERS)
    if can_host not in (None, "true", "false"):
        raise exceptions.InvalidRequest(f"can_host must be true or false, not {can_host!a}.")
    return WantedProvider(
        validation.provider_name(row["provider"]),
        uuid=None if uuid is None else validation.provider_uuid(uuid),
        parent=validation.optional_name("provider", parent),
        pod=validation.optional_name("pod", pod),
        can_host=None if can_host is None else can_host == "true",
    )


def _inventory(row: dict[str, str]) -> Inventory:
    """One line as an inventory. Raises InvalidInventory."""

    def number(column: str) -> int:
        text = row[column].strip()
        if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 100:
            raise exceptions.InvalidInventory(row["resource"], column, row[column], "it must be an integer")
        return int(text)

    values: dict[str, Any] = {column: number(column) for column in _INTEGERS if row.get(column)}
    ratio: Any = row.get("allocation_ratio") or decimal.Decimal(1)
    return units.check_inventory(row["resource"], Inventory(number("total"), allocation_ratio=ratio, **values))


Import = base.generate(
    Operation(
        """Add providers and set inventories from a CSV file, Placement or Cyborg.

        The first line of a file names the columns: provider, resource and total, and
        if needed reserved, min_unit, max_unit, step_size, allocation_ratio, uuid,
        parent, pod and can_host (true or false; false: a shared pool). An empty cell
        means the default. A provider that is known keeps its parent, pod and can_host.

        --from placement reads [placement], and --from cyborg reads [accelerator], for
        the credentials. The resource rules of [cyborg] determine which inventories
        are imported, and as which resources. The devices of a host are summed at the
        host, so that a claim of several fits; with --nested they stay providers of
        their own. Placement also tells what is in use without a reservation here
        (used_elsewhere). An inventory that Placement or Cyborg no longer has gets the
        total 0.

        Everything is checked before anything is written. A repeat changes only what
        differs, and never an allocation. Providers and inventories that the source
        does not name stay unchanged. Prints the changes.
        """,
        "cyborg-quota capacity import inventory.csv\n"
        "  cyborg-quota capacity import --from placement --dry-run\n"
        "  cyborg-quota capacity import --from cyborg --nested",
        _import,
        (
            Argument("file", nargs="?", metavar="FILE", help="the CSV file; - is stdin"),
            Argument(
                "--from", dest="source", choices=("placement", "cyborg"), help="the service to read instead of a file"
            ),
            Argument("--nested", action="store_true", help="keep the devices of a host as providers of their own"),
            arguments.CAPACITY_REASON,
            Argument("--dry-run", action="store_true", help="print the changes, and write nothing"),
        ),
        COLUMNS,
        progress="providers",
    )
)
