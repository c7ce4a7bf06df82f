# SPDX-License-Identifier: Apache-2.0
"""Cyborg's API with quota, as a WSGI application: `application`. Takes the place of cyborg.wsgi.api.

Deletes run in the API's own process, not in the conductor; here they release what they free.
"""

from __future__ import annotations

from typing import Any

from cyborg_quota.integrations.cyborg import compatibility

compatibility.check_services()  # first: what follows imports names that another Cyborg may not have

from cyborg.conductor import rpcapi  # noqa: E402

from cyborg_quota.integrations.cyborg import current, refusing  # noqa: E402


class ConductorAPI(rpcapi.ConductorAPI):  # type: ignore[misc]
    """The way to the conductor, by which a refusal comes back as one sentence."""

    def arq_apply_patch(self, context: Any, patch_list: Any, valid_fields: Any) -> Any:
        try:
            return super().arq_apply_patch(context, patch_list, valid_fields)
        except Exception as error:
            plain = refusing.plain(error)
            if plain is error:
                raise
            raise plain from None


def make_application() -> Any:
    """Cyborg's own application, made with our way to the conductor and our objects. Raises ConfigurationError."""
    rpcapi.ConductorAPI = ConductorAPI  # what Cyborg's hook asks for when the application is loaded
    from cyborg.wsgi import api

    from cyborg_quota.integrations.cyborg import objects

    objects.install()
    current.charger()  # what cannot be configured is said now, not by the first delete
    return api.application


application = make_application()
