# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator quota``: commands of OpenStackClient. They use the REST API of quota only."""
