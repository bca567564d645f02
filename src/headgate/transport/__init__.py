"""What talks to servers over sockets, below the stores and the client."""
