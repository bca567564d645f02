"""The service over HTTP: routes, requests read, answers written, OpenAPI."""
