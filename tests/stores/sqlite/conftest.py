"""Tests that are coroutines are run as those of the flows are."""

from tests.flows.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
