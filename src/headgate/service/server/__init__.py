"""Processes and sockets of the service: workers, TLS, the HTTP protocol, options."""
