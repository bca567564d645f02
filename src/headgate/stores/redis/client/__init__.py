"""The connection to Redis: one server, Sentinel or Cluster, async and blocking."""
