"""Envoy's rate limit protocol: descriptors to checks, outcomes to replies."""
