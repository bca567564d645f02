"""The dashboard: a page in the browser that shows limits at work, and explains them."""

from headgate.service.dashboard.app import Dashboard, FaultSwitch

__all__ = ["Dashboard", "FaultSwitch"]
