# SPDX-License-Identifier: Apache-2.0
"""The REST API, under Cyborg's own API or as a WSGI application of its own. Needs the extra ``api``."""
