# SPDX-License-Identifier: Apache-2.0
"""The errors of the REST API, by the categories that Horizon knows."""

from __future__ import annotations

from typing import Final


class QuotaAPIError(Exception):
    """The REST API refused a call, or could not be reached. Horizon shows the message.

    ``detail`` is the reason in words, as the service gave it; the message has the id of the request, too.
    """

    def __init__(self, detail: str, request_id: str | None = None) -> None:
        super().__init__(f"{detail} ({request_id})" if request_id else detail)
        self.detail = detail


class QuotaNotFound(QuotaAPIError):
    """There is no such object, or the user may not see it."""


class QuotaUnauthorized(QuotaAPIError):
    """The token is no longer valid. Horizon asks the user to log in again."""


BY_STATUS: Final = {401: QuotaUnauthorized, 404: QuotaNotFound}

BY_CATEGORY: Final[dict[str, tuple[type[Exception], ...]]] = {
    "recoverable": (QuotaAPIError,),
    "not_found": (QuotaNotFound,),
    "unauthorized": (QuotaUnauthorized,),
}
"""For ADD_EXCEPTIONS in the settings of Horizon."""
