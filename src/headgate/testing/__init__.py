"""For tests of code that uses headgate, and for authors of stores.

`FakeClock` drives time, `RecordingStore` and `FaultyStore` stand around a real store,
`ScriptedPort` in the place of a real port, and `contract` is the suite every store must pass.
"""

from headgate.testing.contract import Case, cases, run_case
from headgate.testing.doubles import FaultyStore, RecordingStore, ScriptedPort
from headgate.testing.fake_clock import FakeClock

__all__ = [
    "Case",
    "FakeClock",
    "FaultyStore",
    "RecordingStore",
    "ScriptedPort",
    "cases",
    "run_case",
]
