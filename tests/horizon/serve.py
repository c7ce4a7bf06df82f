# SPDX-License-Identifier: Apache-2.0
"""Serves Horizon on 127.0.0.1, run by Horizon's Python: serve.py PORT"""

import sys

from django.conf import settings
from openstack_dashboard.wsgi import application
from waitress import serve
from whitenoise import WhiteNoise

# The browser keeps the static files until it ends.
files = WhiteNoise(application, root=settings.STATIC_ROOT, prefix="static/", max_age=86400)
serve(files, host="127.0.0.1", port=int(sys.argv[1]))
