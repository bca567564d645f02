"""Metrics of the service, of one worker and of all of them."""
