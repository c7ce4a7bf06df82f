# SPDX-License-Identifier: Apache-2.0
"""Run by Keystone's own Python: its WSGI application on 127.0.0.1. serve.py PORT THREADS"""

import sys

port, threads = int(sys.argv[1]), int(sys.argv[2])
del sys.argv[1:]  # Keystone reads what is left

from keystone.server.wsgi import initialize_public_application  # noqa: E402
from waitress import serve  # noqa: E402

serve(initialize_public_application(), host="127.0.0.1", port=port, threads=threads)
