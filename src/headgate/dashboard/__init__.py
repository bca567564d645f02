"""The dashboard: a page in the browser that shows limits at work, and explains them."""

from headgate.dashboard.app import Dashboard
from headgate.dashboard.switch import Switch

__all__ = ["Dashboard", "Switch"]
