# SPDX-License-Identifier: Apache-2.0
"""Serves Keystone's WSGI application on 127.0.0.1, run by Keystone's Python: serve_keystone.py PORT THREADS"""

import sys

port, threads = int(sys.argv[1]), int(sys.argv[2])
del sys.argv[1:]  # Keystone reads the remaining arguments

from keystone.server.wsgi import initialize_public_application  # noqa: E402
from waitress import serve  # noqa: E402

serve(initialize_public_application(), host="127.0.0.1", port=port, threads=threads)
