# SPDX-License-Identifier: Apache-2.0
"""Capacity: providers and their inventories, and the claims that take from them."""
