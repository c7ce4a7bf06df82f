# SPDX-License-Identifier: Apache-2.0
"""Serves a WSGI application on 127.0.0.1, run by Cyborg's Python.

    serve.py MODULE:APPLICATION PORT THREADS [ARGUMENT...]

The application finds the remaining arguments in sys.argv when it is imported.
"""

import importlib
import sys

module, _, name = sys.argv[1].partition(":")
port, threads = map(int, sys.argv[2:4])
sys.argv[1:] = sys.argv[4:]
sys.path.pop(0)  # this directory

from waitress import serve  # noqa: E402

loaded = importlib.import_module(module)
application = getattr(loaded, name)
print(f"{name} of {loaded.__file__}", flush=True)
serve(application, host="127.0.0.1", port=port, threads=threads)
