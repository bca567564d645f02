"""The service over gRPC: headgate's own protocol and Envoy's."""
