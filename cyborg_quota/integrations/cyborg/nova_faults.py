# SPDX-License-Identifier: Apache-2.0
"""Bring the reason of a refused bind into the fault of Nova's server: [cyborg] redirect_nova. Does not import Cyborg.

Nova 34 keeps the status number of Cyborg's answer and not its text, but it keeps the text of an exception of its HTTP
client. keystoneauth raises one for a redirect to an address that it cannot use, and the text contains the address. See
decision record 0047.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final

REFUSAL: Final = "cyborg_quota.refusal"
"""The key in a request's WSGI environment of the sentence by which a bind was refused."""
_STATUS: Final = "307 Temporary Redirect"
_SCHEME: Final = "cyborg-quota"
"""Not a registered URI scheme: no client can follow it."""
_NOVA: Final = "nova-"
"""How the User-Agent of Nova's client begins: keystoneauth writes the name of the program there, nova-conductor."""

Application = Callable[..., Iterable[bytes]]


def redirected(application: Application) -> Application:
    """The WSGI application, which answers Nova's refused binds with a redirect whose address is the reason."""

    def answer(environ: MutableMapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not str(environ.get("HTTP_USER_AGENT", "")).startswith(_NOVA):
            return application(environ, start_response)

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            if (reason := environ.get(REFUSAL)) is not None:
                status, headers = _STATUS, [*headers, ("Location", _address(reason))]
            return start_response(status, headers, *rest)

        return application(environ, start)

    return answer


def _address(reason: str) -> str:
    """An address of visible ASCII characters and blanks: a header has nothing else."""
    text = "".join(character if " " <= character <= "~" else "?" for character in reason)
    return f"{_SCHEME}:{text}"
