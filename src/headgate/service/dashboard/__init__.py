"""The dashboard: a page in the browser that shows limits at work, and explains them."""

from headgate.service.dashboard.app import Dashboard
from headgate.service.dashboard.app__switch import Switch

__all__ = ["Dashboard", "Switch"]
