# SPDX-License-Identifier: Apache-2.0
"""The panels of Horizon. They use the REST API of quota only. A Django application: see apps.py."""
