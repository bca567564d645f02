"""A pytest plugin for tests that are meant to fail: the first counterexample is enough, nobody
looks for a smaller one."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("hasty", phases=[Phase.explicit, Phase.generate])
settings.load_profile("hasty")
