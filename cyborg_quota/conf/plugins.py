# SPDX-License-Identifier: Apache-2.0
"""Loads what options name: a driver, the credentials for Keystone, the transport of notifications."""

from __future__ import annotations

import warnings
from typing import Any, Final

from oslo_config import cfg
from stevedore import driver as stevedore_driver
from stevedore import exception as stevedore_exception

from cyborg_quota import exceptions

PUBLISHER: Final = "cyborg_quota"
"""The publisher of our notifications."""


def load(namespace: str, option: str, name: str) -> Any:
    """The class of the entry point ``name`` in ``namespace``. Raises ConfigurationError, which names ``option``."""
    try:
        with warnings.catch_warnings():
            # The error below reports a missing entry point. Newer releases of stevedore deprecate the argument.
            warnings.simplefilter("ignore", DeprecationWarning)
            return stevedore_driver.DriverManager(namespace, name, warn_on_missing_entrypoint=False).driver
    except stevedore_exception.NoMatches:
        raise exceptions.ConfigurationError(
            f"{option} = {name}: no such entry point in {namespace}. Is the package that provides it installed?"
        ) from None


def has_credentials(conf: cfg.ConfigOpts) -> bool:
    """Whether the loaded configuration has credentials for Keystone, in [oslo_limit].

    Reads the files again with a separate object, because only keystoneauth1 can register its options, and its import
    takes half a second.
    """
    names = ("auth_type", "auth_section")
    probe = cfg.ConfigOpts()
    probe.register_opts([cfg.StrOpt(name) for name in names], group="oslo_limit")
    probe([], default_config_files=conf.config_file or [], default_config_dirs=conf.config_dir or [])
    return any(probe.oslo_limit[name] for name in names)


def load_auth(conf: cfg.ConfigOpts, group: str) -> Any:
    """The auth plugin that the options of ``group`` select. Raises ConfigurationError. No I/O."""
    from keystoneauth1 import exceptions as ksa
    from keystoneauth1 import loading

    try:
        auth = loading.load_auth_from_conf_options(conf, group)
    except ksa.MissingRequiredOptions as error:
        missing = ", ".join(option.dest for option in error.options)
        raise exceptions.ConfigurationError(f"[{group}] lacks {missing}.") from None
    except cfg.Error:
        # The message of oslo.config quotes the text after the $, usually of a password.
        raise exceptions.ConfigurationError(f"[{group}] names another option: write $$ for a $.") from None
    except ksa.NoMatchingPlugin:
        raise exceptions.ConfigurationError(
            f"[{group}] auth_type = {conf[group].auth_type}: keystoneauth1 has no such plugin."
        ) from None
    if auth is None:
        raise exceptions.ConfigurationError(f"[{group}] lacks auth_type: set it to password.")
    return auth


def make_notifier(conf: cfg.ConfigOpts, *, retry: int | None = None) -> Any:
    """Return an oslo_messaging.Notifier. It connects at first use.

    ``retry``: the number of attempts to connect again; None: [oslo_messaging_notifications] retry, by default forever.
    Raises ConfigurationError if oslo.messaging is missing or the transport cannot be used.
    """
    try:
        import oslo_messaging
    except ImportError:
        raise exceptions.ConfigurationError(
            "[notices] notifications needs oslo.messaging: install cyborg_quota[notifications]"
        ) from None
    try:
        transport = oslo_messaging.get_notification_transport(conf)
        return oslo_messaging.Notifier(transport, publisher_id=PUBLISHER, retry=retry)
    except Exception as error:  # its text may contain the URL with its password
        raise exceptions.ConfigurationError(
            f"[notices] notifications: the transport cannot be used ({type(error).__name__}). See transport_url in "
            "[oslo_messaging_notifications] and [DEFAULT]."
        ) from None
