# SPDX-License-Identifier: Apache-2.0
"""How an operation is described, once for each surface that offers it."""
