# SPDX-License-Identifier: Apache-2.0
"""capacity import: providers and inventories from a CSV file, from Placement or from Cyborg."""

from __future__ import annotations

import csv
import dataclasses
import decimal
import sys
from collections.abc import Callable
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
_SOURCES: Final = ("placement", "cyborg")
_REQUIRED: Final = ("provider", "resource", "total")
_INTEGERS: Final = ("reserved", "min_unit", "max_unit", "step_size")
_OF_PROVIDERS: Final = ("uuid", "parent", "pod", "can_host")
_ALL: Final = (*_REQUIRED, *_INTEGERS, "allocation_ratio", *_OF_PROVIDERS)


@dataclasses.dataclass
class _Provider:
    line: int
    details: dict[str, str | None]
    inventories: dict[str, Inventory] = dataclasses.field(default_factory=dict)


def _import(
    run: base.Run, file: str | None, source: str | None, progress: Callable[[int], object], **given: Any
) -> list[Change]:
    if (file is None) == (source is None):
        raise BadUsage("Give either a CSV file, or --from placement or --from cyborg.")
    if source is not None:
        return _import_service(run, source, progress=progress, **given)
    if given["nested"]:
        raise BadUsage("--nested needs --from placement or --from cyborg; a file has the column parent.")
    wanted = _wanted(run, _read(str(file)))
    importer = CapacityImporter(
        run.engine.capacity, run.context, _counted(run), reason=given["reason"], knows_use=False
    )
    return importer.run(lambda: wanted, dry_run=given["dry_run"], progress=progress)


def _counted(run: base.Run) -> list[str]:
    return [resource.name for resource in run.engine.list_resources()]


def _wanted(run: base.Run, providers: dict[str, _Provider]) -> list[WantedProvider]:
    """The providers, whose parents and pods are known. Raises BadUsage."""
    known = {
        name for provider in run.engine.capacity.list_providers(run.context) for name in (provider.name, provider.uuid)
    }
    pods = {pod.name for pod in run.engine.pods.list_pods(run.context)}
    for name, wanted in providers.items():
        parent, pod = wanted.details["parent"], wanted.details["pod"]
        if parent is not None and parent not in known:
            raise BadUsage(f"line {wanted.line}: the parent {parent!a} is not known; put it before its children.")
        if pod is not None and pod not in pods:
            raise BadUsage(f"line {wanted.line}: the pod {pod!a} is not known; add it with `pod create`.")
        known.add(name)
    return [
        WantedProvider(
            name,
            uuid=wanted.details["uuid"],
            parent=wanted.details["parent"],
            pod=wanted.details["pod"],
            can_host=None if wanted.details["can_host"] is None else wanted.details["can_host"] == "true",
            inventories=wanted.inventories,
        )
        for name, wanted in providers.items()
    ]


def _import_service(run: base.Run, source: str, **given: Any) -> list[Change]:
    try:
        from cyborg_quota.capacity.imports import plan
    except ImportError as error:
        raise exceptions.ConfigurationError(f"--from needs {error.name}: install cyborg_quota[keystone].") from None
    return plan.run(run.conf, run.engine.capacity, _counted(run), run.context, source, **given)


def _read(name: str) -> dict[str, _Provider]:
    """The providers of the file, in its order. Raises BadUsage, which names the line."""
    try:
        if name == "-":
            return _parse(sys.stdin)
        with open(name, encoding="utf-8-sig", newline="") as file:
            return _parse(file)
    except OSError as error:
        raise BadUsage(f"{name!a} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadUsage(f"{name!a} is no CSV file in UTF-8: {error}.") from None


def _parse(file: TextIO) -> dict[str, _Provider]:
    reader = csv.DictReader(file, strict=True)
    columns = list(reader.fieldnames or [])
    missing = [column for column in _REQUIRED if column not in columns]
    wrong = [column for column in columns if column not in _ALL]
    if missing or wrong or len(set(columns)) < len(columns):
        raise BadUsage(
            f"The first line must name the columns {', '.join(_REQUIRED)}, and may name {', '.join(_ALL[3:])}, each "
            f"once; it has {', '.join(ascii(column) for column in columns) or 'none'}."
        )
    providers: dict[str, _Provider] = {}
    for row in reader:
        line = reader.line_num
        if None in row or None in row.values():
            raise BadUsage(f"line {line}: it does not have {len(columns)} cells.")
        details = {column: row.get(column) or None for column in _OF_PROVIDERS}
        provider = providers.setdefault(row["provider"], _Provider(line, details))
        if provider.details != details:
            raise BadUsage(f"line {line}: {', '.join(_OF_PROVIDERS)} differ from those of line {provider.line}.")
        if row["resource"] in provider.inventories:
            raise BadUsage(f"line {line}: {row['provider']!a} has two inventories of {row['resource']!a}.")
        try:
            _check_names(details, row["provider"])
            provider.inventories[row["resource"]] = _inventory(row)
        except exceptions.InvalidRequest as error:
            raise BadUsage(f"line {line}: {error}") from None
    return providers


def _check_names(details: dict[str, str | None], name: str) -> None:
    """Raise InvalidName for what ``add_provider`` would refuse."""
    validation.provider_name(name)
    if details["uuid"] is not None:
        validation.provider_uuid(details["uuid"])
    validation.optional_name("provider", details["parent"])
    validation.optional_name("pod", details["pod"])
    if details["can_host"] not in (None, "true", "false"):
        raise exceptions.InvalidRequest(f"can_host must be true or false, not {details['can_host']!a}.")


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
            Argument("--from", dest="source", choices=_SOURCES, help="the service to read instead of a file"),
            Argument("--nested", action="store_true", help="keep the devices of a host as providers of their own"),
            arguments.CAPACITY_REASON,
            Argument("--dry-run", action="store_true", help="print the changes, and write nothing"),
        ),
        COLUMNS,
        progress="providers",
    )
)
