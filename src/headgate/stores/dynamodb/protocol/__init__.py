"""How a bucket is read, decided and written: optimistic writes to one item, without a lock."""
