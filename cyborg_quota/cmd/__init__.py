# SPDX-License-Identifier: Apache-2.0
"""The command line and the services: thin, each thing done through the engine's public face."""
