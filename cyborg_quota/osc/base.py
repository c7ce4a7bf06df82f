# SPDX-License-Identifier: Apache-2.0
"""The commands of OpenStackClient, generated from operations."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, ClassVar

from osc_lib.command import command

from cyborg_quota.osc.client import QuotaClient
from cyborg_quota.surface.operations import Arguments, Columns, Operation, add_to


class Run(command.Command):
    """A command that is generated from an operation. The call may set ``status``, the exit status."""

    app: Any
    operation: ClassVar[Operation]
    status: int = 0

    @property
    def client(self) -> QuotaClient:
        """The REST API."""
        return QuotaClient(self.app.client_manager)

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        self.argument_names = add_to(parser, self.operation.arguments)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Run the command; returns the exit status."""
        return int(super().run(parsed_args)) or self.status

    def take_action(self, parsed_args: argparse.Namespace) -> Any:
        """Return what is shown; see Operation.run."""
        return self.operation.run(self, **{name: getattr(parsed_args, name) for name in self.argument_names})


def generate(
    summary: str,
    call: Callable[..., Any],
    arguments: Arguments,
    columns: Columns | None = None,
    *,
    is_list: bool = True,
) -> Any:
    """The command of an operation, for which OpenStackClient's help has no example."""
    operation = Operation(summary, "", call, arguments, columns, is_list)
    return operation.command(Run, command.Command, command.Lister, command.ShowOne)
