"""Envoy's rate limit service: the few messages of it that are needed, see NOTICE.md."""
