"""Messages of the gRPC wires: the .proto files and what `tools/generate_stubs.py` makes of them."""
