"""What Hypothesis tries is the same in every run, so that a red run can be run again; set
HEADGATE_EXPLORE=1 to try something else each time."""

from __future__ import annotations

import os

from hypothesis import settings

if not os.environ.get(
    "HEADGATE_EXPLORE"
):  # on top of what a plugin chose (mutants: the first find)
    settings.register_profile("repeatable", settings(), derandomize=True, database=None)
    settings.load_profile("repeatable")
