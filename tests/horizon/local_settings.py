# SPDX-License-Identifier: Apache-2.0
"""The settings of the Horizon of the tests: the environment copies this file to openstack_dashboard/local."""

import os
import pathlib

DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
# Only for processes that the tests start, which serve on 127.0.0.1.
SECRET_KEY = os.environ.get("CYBORG_QUOTA_HORIZON_SECRET", "made while the static files are collected")
OPENSTACK_KEYSTONE_URL = os.environ.get("CYBORG_QUOTA_HORIZON_KEYSTONE", "http://127.0.0.1/v3")
TIME_ZONE = "UTC"
LOCAL_PATH = str(pathlib.Path(__file__).parent)
STATIC_ROOT = str(pathlib.Path(__file__).parents[1] / "collected")
COMPRESS_OFFLINE = True
AVAILABLE_THEMES = [("default", "Default", "themes/default")]
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
