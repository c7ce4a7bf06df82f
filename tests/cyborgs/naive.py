# SPDX-License-Identifier: Apache-2.0
"""cyborg-quota-conductor that never releases: a control that the soak test must detect. Run by Cyborg's Python."""

import sys

sys.path.pop(0)  # this directory

from cyborg_quota.cli import conductor as command
from cyborg_quota.cyborg import bind_tracker

bind_tracker.BindTracker.release = lambda self, arq, project_id: True
sys.exit(command.main())
