"""The dashboard: a page in the browser that shows limits at work, and explains them."""

from headgate.dashboard.app import Dashboard

__all__ = ["Dashboard"]
