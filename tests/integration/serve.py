# SPDX-License-Identifier: Apache-2.0
"""Run by Keystone's own Python: its WSGI application on 127.0.0.1, on the port that is the only argument."""

import sys

port = int(sys.argv.pop())  # Keystone reads what is left

from keystone.server.wsgi import initialize_public_application  # noqa: E402
from waitress import serve  # noqa: E402

serve(initialize_public_application(), host="127.0.0.1", port=port, threads=4)
