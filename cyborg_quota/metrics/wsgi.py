# SPDX-License-Identifier: Apache-2.0
"""The values of the ledger for Prometheus as a WSGI application: `application`, for uWSGI and gunicorn.

It names every project in [metrics] projects without authentication: serve it at an internal port only. The
configuration is read as by cyborg_quota.api.wsgi.
"""

from __future__ import annotations

import cyborg_quota
from cyborg_quota.conf import loading
from cyborg_quota.metrics import exporter

with loading.exit_if_invalid("cyborg-quota-metrics"):
    _conf = loading.load_service("cyborg-quota-metrics")
    application = exporter.make_application(_conf, cyborg_quota.make_engine(_conf))
