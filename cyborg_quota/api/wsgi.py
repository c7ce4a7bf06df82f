# SPDX-License-Identifier: Apache-2.0
"""The API as a WSGI application of its own: `application`, for uWSGI, gunicorn and Apache.

The configuration is read from /etc/cyborg_quota/cyborg_quota.conf, or from the files named in the environment variable
OS_CYBORG_QUOTA_CONFIG_FILES, which are separated by ``;`` (as with OS_KEYSTONE_CONFIG_FILES).
"""

from __future__ import annotations

from oslo_log import log as logging

import cyborg_quota
from cyborg_quota.api import deploy
from cyborg_quota.conf import loading

LOG = logging.getLogger(__name__)


# Without I/O to the database. If the configuration is invalid, this prints the error and exits with a status for which
# the server does not restart the worker.
with loading.exit_if_invalid("cyborg-quota-api"):
    _conf = loading.load_service("cyborg-quota-api")
    _engine = cyborg_quota.make_engine(_conf)
    application = deploy.make_application(_conf, _engine)
    LOG.info("cyborg_quota %s, REST API: ledger %s.", cyborg_quota.__version__, _engine.location)
