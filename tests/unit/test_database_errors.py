# SPDX-License-Identifier: Apache-2.0
"""Which errors of a driver mean that no server can be reached, so that they open the circuit breaker."""

from __future__ import annotations

import sqlalchemy.exc as sa_exc
from oslotest import base

from cyborg_quota import exceptions
from cyborg_quota.db import errors

AT = 'connection to server at "127.0.0.1", port 6432 failed: FATAL:'


class DriverError(Exception):
    """As pymysql and psycopg2 raise it: (number, message), or (message,)."""


class TestUnreachable(base.BaseTestCase):
    def test_texts(self) -> None:
        """A pooler or a node without a quorum answers, but no server does. Those that a server sends are answers."""
        unreachable, unavailable = exceptions.DatabaseUnreachable, exceptions.DatabaseUnavailable
        for arguments, expected in (
            ((1047, "WSREP has not yet prepared node for application use"), unreachable),
            (
                ("FATAL:  server login has been failing, cached error: connect failed (server_login_retry)\n",),
                unreachable,
            ),
            (("ERROR:  pgbouncer cannot connect to server\n",), unreachable),
            (("server closed the connection unexpectedly\n",), unreachable),
            (("FATAL:  server login has been failing, cached error: password authentication failed\n",), unavailable),
            (("FATAL:  query_wait_timeout\nserver closed the connection unexpectedly\n",), unavailable),
            ((f"{AT}  no more connections allowed (max_client_conn)\n",), unavailable),
            ((f"{AT}  no such database: cyborg_quota\n",), unavailable),
            ((1040, "Too many connections"), unavailable),
            ((1129, "Host 'api1' is blocked because of many connection errors; unblock with ..."), unavailable),
            ((1130, "Host 'api1' is not allowed to connect to this MariaDB server"), unavailable),
            ((1203, "User quota already has more than 'max_user_connections' active connections"), unavailable),
            ((1226, "User 'quota' has exceeded the 'max_user_connections' resource"), unavailable),
            ((1213, "Deadlock found when trying to get lock"), unavailable),
        ):
            error = sa_exc.OperationalError("SELECT 1", {}, DriverError(*arguments))
            self.assertIs(expected, type(errors.translate(error, 1.0)), arguments)

    def test_a_retry_after_a_refused_connection(self) -> None:
        """One may end; but a retry does not help against a wrong configuration."""
        for arguments, expected in (
            ((f"{AT}  no more connections allowed (max_client_conn)\n",), True),
            ((1203, "User quota already has more than 'max_user_connections' active connections"), True),
            ((1226, "User 'quota' has exceeded the 'max_user_connections' resource"), True),
            ((f"{AT}  no such database: cyborg_quota\n",), False),
            ((1129, "Host 'api1' is blocked because of many connection errors; unblock with ..."), False),
            ((1130, "Host 'api1' is not allowed to connect to this MariaDB server"), False),
        ):
            error = sa_exc.OperationalError("SELECT 1", {}, DriverError(*arguments))
            self.assertEqual(expected, errors.may_do_again(error), arguments)
