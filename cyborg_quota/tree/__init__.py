# SPDX-License-Identifier: Apache-2.0
"""The project tree: adds and moves projects."""
