# SPDX-License-Identifier: Apache-2.0
"""Cyborg's API with quota, as a WSGI application: `application`. Replaces cyborg.wsgi.api.

Deletes run in the API's process, not in the conductor, so their releases run here. The REST API of quota is part of it
if the extra ``api`` is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from cyborg_quota.cyborg import compatibility

compatibility.check_services()  # first: the next imports fail with an unsupported Cyborg

import pecan  # noqa: E402
from cyborg.api import app as cyborg_app  # noqa: E402
from cyborg.conductor import rpcapi  # noqa: E402
from oslo_log import log as logging  # noqa: E402

from cyborg_quota.conf import loading  # noqa: E402
from cyborg_quota.cyborg import arq_records, process_state  # noqa: E402

LOG = logging.getLogger(__name__)

CHECKED = "cyborg_quota.unbound_requests_checked"
"""The key in a request's WSGI environment that is set after the check of max_unbound_requests."""


class ConductorAPI(rpcapi.ConductorAPI):  # type: ignore[misc]
    """The RPC client of the conductor. It sets the header Retry-After of a refusal."""

    def arq_create(self, context: Any, obj_extarq: Any, devprof_id: int) -> Any:
        """Create an ARQ. Cyborg calls this for each ARQ of a POST; the first call checks the limit for all of them."""
        maximum = process_state.conf().cyborg.max_unbound_requests
        if maximum >= 0 and not pecan.request.environ.get(CHECKED):
            arq_records.check_unbound(context, devprof_id, maximum)
            pecan.request.environ[CHECKED] = True
        return super().arq_create(context, obj_extarq, devprof_id)

    def arq_apply_patch(self, context: Any, patch_list: Any, valid_fields: Any) -> Any:
        try:
            return super().arq_apply_patch(context, patch_list, valid_fields)
        except Exception as error:
            seconds = getattr(error, "kwargs", {}).get("retry_after")  # of a 503; see errors.translated
            if seconds is not None:
                pecan.response.headers["Retry-After"] = str(seconds)
            raise


def _mount_quota_api(setup_app: Callable[..., Any]) -> Callable[..., Any]:
    """Cyborg's ``setup_app``, whose application also answers the paths of the REST API of quota.

    The middleware of Cyborg's api-paste.ini is around both: authtoken, request_id, cors. While the ledger does not
    answer, few threads of Cyborg's API wait for it; see LedgerGuard.call_in_slot.
    """
    from cyborg_quota.api import deploy
    from cyborg_quota.api.microversions import VersionRange

    def setup(*args: Any, **options: Any) -> Any:
        compatibility.check(compatibility.REST_PARTS)
        from cyborg.api.controllers.v2 import versions

        tracker = process_state.bind_tracker()
        engine = tracker.engine
        supported = VersionRange(versions.min_version_string(), versions.max_version_string())
        quota_api = deploy.make_bare_application(
            process_state.conf(), engine, supported, call_ledger=tracker.guard.call_in_slot
        )
        return deploy.mount(quota_api, setup_app(*args, **options))

    return setup


# If the configuration is invalid, this prints the error and exits with a status for which the server does not restart
# the worker.
with loading.exit_if_invalid("cyborg-api"):
    rpcapi.ConductorAPI = ConductorAPI  # Cyborg's hook looks this class up when the application is loaded
    if importlib.util.find_spec("falcon") is not None:
        cyborg_app.setup_app = _mount_quota_api(cyborg_app.setup_app)
    from cyborg.wsgi import api

    from cyborg_quota.cyborg import objects

    objects.install()
    process_state.bind_tracker()  # raises configuration errors now instead of at the first delete
    process_state.log_start("API")
    application = api.application
    if importlib.util.find_spec("falcon") is None:
        LOG.info("The REST API of quota is not served: install cyborg_quota[api].")
    else:
        from cyborg_quota.api import deploy, middleware

        # Cyborg's keystonemiddleware answers in place of the API: its errors get the format of the API, too.
        application = deploy.mount(middleware.JsonErrors(application), application)
