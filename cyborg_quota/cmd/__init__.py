# SPDX-License-Identifier: Apache-2.0
"""The command line and the services: thin, each thing done through the engine's public face."""

import warnings

# futurist imports eventlet wherever it is installed (beside Cyborg it is), and eventlet then speaks of itself.
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
