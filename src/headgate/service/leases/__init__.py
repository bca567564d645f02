"""Leases that clients hold over the wire: kept, settled, expired."""
