"""A bucket divided over several items once one item is too hot."""
