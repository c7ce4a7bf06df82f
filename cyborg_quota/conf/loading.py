# SPDX-License-Identifier: Apache-2.0
"""Reading a configuration of cyborg_quota's own: files where its name leads, environment, arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oslo_config import cfg

from cyborg_quota import conf as groups

PROJECT: Final = "cyborg_quota"
"""Names the default configuration files: /etc/cyborg_quota/cyborg_quota.conf and its likes."""


def load(conf: cfg.ConfigOpts, arguments: Sequence[str], prog: str = PROJECT, **more: Any) -> cfg.ConfigOpts:
    """Read files, environment and ``arguments`` into ``conf``. Raises cfg.Error, also for a value that is wrong."""
    groups.register_opts(conf)
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
        raise cfg.ConfigFileParseError(error.config_file, _place(error)) from None
    for group in (conf.quota, conf.limits, conf.cyborg):
        dict(group.items())  # oslo.config reads a value when it is asked for: a service would fail in the middle
    return conf


def told(error: cfg.Error) -> str:
    """What may be said of an error in any configuration: oslo.config's own words may quote a password.

    Of a line that is none it quotes all, and of a value with a $ what follows that.
    """
    if isinstance(error, cfg.ConfigFileParseError):
        return str(cfg.ConfigFileParseError(error.config_file, _place(error)))
    if isinstance(error, cfg.NoSuchOptError | cfg.NoSuchGroupError | cfg.TemplateSubstitutionError):
        return "The value of an option names another option: write $$ for a $."
    return str(error)


def _place(error: cfg.ConfigFileParseError) -> str:
    """Which line is wrong, and why, without what stands there."""
    cause = error.__context__
    while isinstance(cause, cfg.ConfigFileParseError):  # it was made plain before
        cause = cause.__context__
    number, why = getattr(cause, "lineno", None), getattr(cause, "msg", None)
    return "it is no configuration file" if number is None else f"line {number}: {why}"
