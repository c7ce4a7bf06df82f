# SPDX-License-Identifier: Apache-2.0
"""The description of an operation: what it does, its arguments, the call, its route, and what it returns.

From it are generated the command of ``cyborg-quota`` (cli/base.py), the call of the REST API (api/operations.py), and
the command of OpenStackClient (osc/base.py). It knows no library of a surface but argparse's types of arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, Final, NamedTuple

from cyborg_quota.surface import formats
from cyborg_quota.types import MAX_NAME_BYTES, MAX_NAME_CHARS, MAX_REASON_CHARS

Schema = dict[str, Any]

_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f\u2028\u2029\ud800-\udfff"
_BLANK: Final = r" \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_INSIDE: Final = f"[^{_CONTROL}]"
_EDGE: Final = f"[^{_CONTROL}{_BLANK}]"
# The patterns of what validation.py accepts, for clients: requests.py leaves them out, and validation.py says in words
# what is wrong. A name with characters of four bytes must be shorter.
NAME: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_NAME_CHARS,
    "pattern": f"^(?=(.{{1,{MAX_NAME_BYTES // 4}}}|[\\u0000-\\uffff]+)$){_EDGE}({_INSIDE}*{_EDGE})?$",
}
REASON: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_REASON_CHARS,
    "pattern": f"^{_INSIDE}*{_EDGE}{_INSIDE}*$",
}
TEXT: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_HOUR: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
TIME: Final[Schema] = {
    "type": "string",
    "format": "date-time",
    "maxLength": 64,
    "pattern": "^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    f"T{_HOUR}(:[0-5][0-9](\\.([0-9]{{3}}|[0-9]{{6}}))?)?(Z|[+-]{_HOUR})?$",
}


def nullable(schema: Schema) -> Schema:
    """The schema of a value that may be null."""
    return {"oneOf": [schema, {"type": "null"}]}


def described(schema: Schema, description: str) -> Schema:
    """The schema with a description."""
    return {**schema, "description": description}


def _plain(value: Any) -> Any:
    return value


class Argument:
    """An argument: its name or its options (``--limit``), and how argparse handles it (type, bounds, help).

    ``rest``: its name in the REST API, if that differs from the name of the value; ``select.quota`` is the member
    ``quota`` of the member ``select`` of the body. None: it exists on the host only. ``schema``: that of its value
    there. ``collect`` makes the value of the call from the words of a command, and ``load`` from that of a request.
    """

    def __init__(
        self,
        *flags: str,
        rest: str | None = "",
        schema: Schema | None = None,
        collect: Callable[[Any], Any] = _plain,
        load: Callable[[Any], Any] = _plain,
        **details: Any,
    ) -> None:
        self.flags, self.details, self._schema = flags, details, schema
        self.name: Final[str] = details.get("dest") or flags[-1].lstrip("-").replace("-", "_")
        self.rest: Final = self.name if rest == "" else rest
        self.collect, self.load = collect, load

    @property
    def default(self) -> Any:
        """The value of a call that does not have the argument."""
        without = {"store_true": False, "store_false": True}.get(str(self.details.get("action")))
        return self.details.get("default", without)

    @property
    def is_required(self) -> bool:
        """Whether a request must have the argument."""
        is_operand = not self.flags[-1].startswith("-") and self.details.get("nargs") not in ("?", "*")
        return bool(self.details.get("required")) or is_operand

    @property
    def schema(self) -> Schema:
        """The JSON schema of the value: by default that of a name, a choice, a number or a boolean."""
        schema, kind = self._schema or NAME, self.details.get("type")
        if self._schema is None and isinstance(kind, functools.partial):
            schema = {"type": "integer", "minimum": kind.keywords["minimum"], "maximum": kind.keywords["maximum"]}
        elif self._schema is None and str(self.details.get("action")).startswith("store_"):
            schema = BOOLEAN
        elif self._schema is None and "choices" in self.details:
            schema = {"type": "string", "enum": list(self.details["choices"])}
        return described(schema, self.details["help"])


class OneOf:
    """Arguments of which at most one may be given. ``required``: one must be given."""

    def __init__(self, *arguments: Argument, required: bool = False) -> None:
        self.arguments, self.required = arguments, required


Arguments = Sequence[Argument | OneOf]


def flat(arguments: Arguments) -> Iterator[Argument]:
    """The arguments, also those of which at most one may be given."""
    for argument in arguments:
        yield from argument.arguments if isinstance(argument, OneOf) else (argument,)


def add_to(parser: argparse._ActionsContainer, arguments: Arguments) -> None:
    """Add the arguments to a parser."""
    for argument in arguments:
        if isinstance(argument, OneOf):
            add_to(parser.add_mutually_exclusive_group(required=argument.required), argument.arguments)
        else:
            parser.add_argument(*argument.flags, **argument.details)


class Column(NamedTuple):
    """A column: its name, how a value is shown (an empty value, above all), and the value (None: the field ``name``).

    ``schema``: that of the value in the REST API; None: it is shown on the host only. ``rest``: its name there, if that
    differs. ``cell`` None: it is in the REST API only. ``text``: what a table shows, of the values of the row by the
    names of their columns; None: that of the cell. ``is_sparse``: a table lacks the column if it is empty in each row.
    ``title``: its name in the commands, if that differs.
    """

    name: str
    cell: Callable[[Any], Any] | None = _plain
    value: Callable[[Any], Any] | None = None
    schema: Schema | None = None
    rest: str | None = None
    text: Callable[[Mapping[str, Any]], str] | None = None
    is_sparse: bool = False
    title: str | None = None

    def of(self, record: Any) -> Any:
        """The value of a record."""
        return getattr(record, self.name) if self.value is None else self.value(record)

    def show(self, values: Mapping[str, Any]) -> Any:
        """What the commands show, of the values of the row."""
        shown = (self.cell or _plain)(values[self.name])
        return shown if self.text is None else formats.Cell(formats.machine([shown])[0], self.text(values))

    @property
    def member(self) -> str:
        """Its name in the REST API."""
        return self.rest or self.name


Columns = Sequence[Column]


def columns(*names: str, cell: Callable[[Any], Any] = _plain, schema: Schema | None = None) -> list[Column]:
    """Columns that are shown alike, each with the value of the field of its name."""
    return [Column(name, cell, schema=schema) for name in names]


def part(index: int, shown: Columns) -> list[Column]:
    """The columns of a part of records that are tuples."""
    return [
        column._replace(value=functools.partial(lambda of, record: of(record[index]), column.of)) for column in shown
    ]


def cells(*names: str) -> list[Column]:
    """The columns of records that are tuples of cells."""
    return numbered(*map(Column, names))


def numbered(*shown: Column) -> list[Column]:
    """The columns of records that are tuples, in this order."""
    return [column._replace(value=itemgetter(index)) for index, column in enumerate(shown)]


def entries(*, cell: Callable[[Any], Any] = formats.Optional, **names: str) -> list[Column]:
    """The columns of records that are mappings, by the key of the value. A value may be missing."""
    return [Column(name, cell, methodcaller("get", key)) for key, name in names.items()]


def _is_empty(value: Any) -> bool:
    return (value.human_readable() if isinstance(value, formats.Cell) else value) in (None, "")


def is_table(parsed: argparse.Namespace) -> bool:
    """Whether the output of a command is a table without a selection of columns."""
    return getattr(parsed, "formatter", None) == "table" and not parsed.columns


def sentences(run: Any, records: Sequence[Any], text: Callable[[Any], str]) -> Sequence[Any]:
    """The records. For a table without a selection of columns: none, after printing the text of each."""
    if not records or not is_table(run.parsed):
        return records
    for record in records:
        print(text(record), file=run.app.stdout)
    run.noun = ""
    return ()


class Table(NamedTuple):
    """What a call returns if its arguments determine the columns."""

    columns: Columns
    records: Any


class Route(NamedTuple):
    """The call of the REST API: ``GET``, ``/v2/quota_providers/{provider}``, and the policy rule.

    ``record``: the name of the schema of a record. ``member`` is that of the answer which has the record or the
    records. ``marker`` gives the text that names a record in a link to the next page; None: the list has no pages.
    ``rule`` None: the call itself checks what the user may see. ``errors``: the statuses besides those that every call
    has.
    """

    method: str
    path: str
    rule: str | None
    member: str | None = None
    record: str | None = None
    marker: Callable[[Any], str] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of one or several surfaces.

    ``summary``: what it does; the first sentence is its title. ``call``: gets the caller (see CallerProtocol) and the
    values of ``arguments`` by name, and returns a record or (``is_list``) records, or a Table of them. ``columns``:
    what is shown of a record; None: the operation returns nothing. ``refuses``: it has failed if it returns records.
    ``progress``: the unit of a progress bar, for calls that take a function ``progress``. ``words``: those of its
    commands; ``route``: None, if it exists on the host only. ``long``: the columns that a table has with --long only.
    ``noun``: what an empty list has none of; None: as ``words``; empty: that is no news.
    """

    summary: str
    example: str
    call: Callable[..., Any]
    arguments: Arguments = ()
    columns: Columns | None = None
    is_list: bool = True
    refuses: bool = False
    progress: str | None = None
    has_names: bool = True
    words: str = ""
    route: Route | None = None
    long: tuple[str, ...] = ()
    noun: str | None = None

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the call, from those that argparse has made. Operands also name a project."""
        values = {
            argument.name: argument.collect(given[argument.name])
            for argument in flat(self.arguments)
            if argument.name in given
        }
        return {**({"project_id": given["project_id"]} if "project_id" in given else {}), **values}

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of the command."""
        add_to(parser, self.arguments)
        if self.long:
            names = f"{', '.join(self.long[:-1])} and {self.long[-1]}"
            parser.add_argument("--long", action="store_true", help=f"also show {names} in a table")

    def run(self, command: Any, parsed: argparse.Namespace, **given: Any) -> Any:
        """Make the call. Returns the names of the columns, and the row or the rows; None if it returns nothing."""
        result = self.call(command, **given)
        if self.columns is None:
            return None
        columns, records = result if isinstance(result, Table) else (self.columns, result)
        shown = [column for column in columns if column.cell is not None]
        values = (
            {column.name: column.of(record) for column in shown} for record in (records if self.is_list else [records])
        )
        rows = [tuple(column.show(row) for column in shown) for row in values]
        if self.is_list and is_table(parsed):
            hidden = () if getattr(parsed, "long", False) else self.long
            kept = [
                column.name not in hidden
                and not (column.is_sparse and rows and all(_is_empty(row[index]) for row in rows))
                for index, column in enumerate(shown)
            ]
            shown, rows = list(itertools.compress(shown, kept)), [tuple(itertools.compress(row, kept)) for row in rows]
        names = [column.title or column.name for column in shown]
        return names, rows if self.is_list else rows[0]

    def command(self, run: type, plain: type, lister: type, show: type) -> Any:
        """The command, which is also of the kind for what the call returns: nothing, records or one record."""
        kind = plain if self.columns is None else lister if self.is_list else show
        fields = {
            "__doc__": self.summary,
            "__module__": __name__,
            "operation": self,
            "noun": self.words.rpartition(" list")[0] if self.noun is None else self.noun,
        }
        return type("Generated", (run, kind), fields)


by_name: Final = attrgetter("name")
"""The marker of a list of records that have names."""
