# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-conductor: Cyborg's conductor with quota. It replaces cyborg-conductor and takes the same arguments."""

from __future__ import annotations

import sys
from typing import Final

from cyborg_quota.cli.errors import DONE, run_program

PROG: Final = "cyborg-quota-conductor"


def main() -> int:
    """Run the service; returns the exit status."""
    return run_program(PROG, _serve, has_debug=False)  # (an error of Cyborg ends it as Cyborg's conductor)


def _serve() -> int:
    from cyborg_quota.cyborg import compatibility

    compatibility.check_services(compatibility.PROGRAM)
    from cyborg_quota.cyborg import conductor

    conductor.serve(sys.argv)
    return DONE


if __name__ == "__main__":
    sys.exit(main())
