# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-conductor: Cyborg's conductor with quota. It replaces cyborg-conductor and takes the same arguments."""

from __future__ import annotations

import sys
from typing import Final

from oslo_config import cfg

from cyborg_quota import exceptions
from cyborg_quota.cli.errors import exit_status, one_line
from cyborg_quota.conf import loading

PROG: Final = "cyborg-quota-conductor"


def main() -> int:
    """Run the service; returns the exit status."""
    from cyborg_quota.cyborg import compatibility

    try:
        compatibility.check_conductor()
        from cyborg_quota.cyborg import conductor

        conductor.serve(sys.argv)
    except (exceptions.QuotaError, cfg.Error) as error:
        text = loading.safe_message(error) if isinstance(error, cfg.Error) else str(error)
        print(f"{PROG}: {one_line(text)}", file=sys.stderr)
        return exit_status(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
