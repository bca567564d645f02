"""The service: one class that decides, and the wires (REST, gRPC, Envoy) that speak for it."""
