# SPDX-License-Identifier: Apache-2.0
"""Read inventories from Placement or from Cyborg, through their APIs."""
