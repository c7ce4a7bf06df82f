# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota replay export: write the ledger's history as a trace."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, TextIO

from cyborg_quota import exceptions
from cyborg_quota.cli import base, output
from cyborg_quota.cli.db import open_database
from cyborg_quota.surface import arguments
from cyborg_quota.surface.operations import Operation


@contextlib.contextmanager
def exported(conf: Any, since_seconds: int | None) -> Iterator[TextIO]:
    """Write the trace of the configured ledger to a temporary file without a name, and yield it."""
    from cyborg_quota.replay import export

    with contextlib.ExitStack() as stack:
        try:
            with open_database(conf, untimed=True) as database, base.progress_bar(None, "events") as progress:
                # Without a name, so that nothing is left behind by a process that is killed.
                file = tempfile.TemporaryFile("w+", encoding="utf-8", newline="")  # noqa: SIM115 (closed at exit)
                stack.callback(_close, file)
                export.write(database, file, since_seconds, progress)
                file.flush()
                file.seek(0)
        except OSError as error:
            where = "" if tempfile.tempdir is None else f" in {tempfile.tempdir}"
            raise exceptions.QuotaError(
                f"The temporary file{where} cannot be written: {error.strerror}. Nothing was changed. Set the "
                "environment variable TMPDIR to a directory with more space."
            ) from None
        yield file


def _close(file: TextIO) -> None:
    """What the file has in its buffer is not needed, so there is no error if it cannot be written."""
    with contextlib.suppress(OSError):
        file.close()


def _export(run: base.Run, file: str | None, since: int | None) -> None:
    with exported(run.conf, since) as trace, output.output(run.app.stdout, file) as target:
        shutil.copyfileobj(trace, target)


Export = base.generate(
    Operation(
        """Write the history of the ledger as a trace, for `replay` and `simulate`.

        A replay of the trace, without limits and on an empty database, ends with the
        same used and reserved amounts. Each reservation becomes a consumer, named by
        its UUID. With --since, what was held at that time is reserved at time 0. The
        trace contains no refused requests, because the ledger does not store them,
        and nothing that a purge has deleted ([quota] purge_age).
        """,
        "cyborg-quota trace export trace.csv --since 30d",
        _export,
        (arguments.OUTPUT, arguments.SINCE),
    )
)
