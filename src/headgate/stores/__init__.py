"""The stores: siblings behind one contract, none of which knows another."""
