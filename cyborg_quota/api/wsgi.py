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


@loading.exit_if_invalid("cyborg-quota-api")
def make_application() -> deploy.Application:
    """Read the configuration and create the application, without I/O to the database.

    If the configuration is invalid, print why, and end the worker so that its server does not start it again.
    """
    conf = loading.load_service("cyborg-quota-api")
    engine = cyborg_quota.make_engine(conf)
    application = deploy.make_application(conf, engine)
    LOG.info("cyborg_quota %s, REST API: ledger %s.", cyborg_quota.__version__, engine.location)
    return application


application = make_application()
