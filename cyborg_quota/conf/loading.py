# SPDX-License-Identifier: Apache-2.0
"""Reads the configuration of cyborg_quota: its default files, the environment and the arguments."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from oslo_config import cfg
from oslo_log import log as logging

from cyborg_quota import exceptions
from cyborg_quota.conf import opts

PROJECT: Final = "cyborg_quota"
"""Determines the default configuration files, such as /etc/cyborg_quota/cyborg_quota.conf."""

CONFIG_FILES: Final = "OS_CYBORG_QUOTA_CONFIG_FILES"
"""The environment variable that names the configuration files of a WSGI application, which has no arguments."""


_APP_LOAD_ERROR: Final = 4
"""gunicorn's Arbiter.APP_LOAD_ERROR."""


def load_service(name: str) -> cfg.ConfigOpts:
    """The configuration of the WSGI application with this name, which is also set up to log. Raises cfg.Error.

    The files are those in CONFIG_FILES, separated by ``;``, or else the default files.
    """
    conf = cfg.ConfigOpts()
    logging.register_options(conf)
    paths = os.environ.get(CONFIG_FILES, "").split(";")
    load(conf, [part for path in paths if path for part in ("--config-file", path)])
    logging.setup(conf, name)
    return conf


@contextlib.contextmanager
def exit_if_invalid(name: str) -> Iterator[None]:
    """Print an error of the configuration as one line, and exit with the status that tells gunicorn to end."""
    try:
        yield
    except (cfg.Error, exceptions.ConfigurationError) as error:
        text = safe_message(error) if isinstance(error, cfg.Error) else str(error)
        print(f"{name}: {' '.join(text.split())}", file=sys.stderr)
        raise SystemExit(_APP_LOAD_ERROR) from None


def load(conf: cfg.ConfigOpts, arguments: Sequence[str], prog: str = PROJECT, **more: Any) -> cfg.ConfigOpts:
    """Read files, environment and ``arguments`` into ``conf``. Raises cfg.Error, also for an invalid value."""
    opts.register_opts(conf)
    try:
        conf(
            list(arguments),
            project=PROJECT,
            prog=prog,
            default_config_files=cfg.find_config_files(project=PROJECT, prog=PROJECT),
            default_config_dirs=cfg.find_config_dirs(project=PROJECT, prog=PROJECT),
            **more,
        )
    except cfg.ConfigFileParseError as error:
        raise cfg.ConfigFileParseError(error.config_file, _position(error)) from None
    except UnicodeDecodeError as error:  # (whose repr has the whole content, with the passwords)
        raise cfg.Error(f"A configuration file is not in UTF-8: {error.reason}.") from None
    except OSError as error:
        raise cfg.Error(f"The configuration file {error.filename!a} cannot be read: {error.strerror}.") from None
    for name in sorted(opts.OPTIONS.keys() - {"database"}):  # (whose errors may contain a secret)
        dict(conf[name].items())  # oslo.config parses a value at its first access: parse all at the start
    return conf


def safe_message(error: cfg.Error) -> str:
    """A message for a configuration error that contains no secret.

    The messages of oslo.config may quote a password: they contain a line that cannot be parsed, and the text after a $
    in a value.
    """
    if isinstance(error, cfg.ConfigFileParseError):
        return str(cfg.ConfigFileParseError(error.config_file, _position(error)))
    if isinstance(error, cfg.NoSuchOptError | cfg.NoSuchGroupError | cfg.TemplateSubstitutionError):
        return "The value of an option names another option: write $$ for a $."
    return str(error)


def _position(error: cfg.ConfigFileParseError) -> str:
    """The number of the invalid line and the reason, without the text of the line."""
    cause = error.__context__
    while isinstance(cause, cfg.ConfigFileParseError):  # load() has already replaced the message
        cause = cause.__context__
    number, why = getattr(cause, "lineno", None), getattr(cause, "msg", None)
    return "it is not a configuration file" if number is None else f"line {number}: {why}"
