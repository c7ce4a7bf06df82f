# SPDX-License-Identifier: Apache-2.0
"""The command line and the services. They contain no quota logic: all work goes through the engine's public API."""

import warnings

# futurist imports eventlet when it is installed, as it is together with Cyborg; eventlet then prints this warning.
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated")
