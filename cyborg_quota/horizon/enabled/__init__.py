# SPDX-License-Identifier: Apache-2.0
"""Settings that enable the panels: copy the files to openstack_dashboard/local/enabled."""
