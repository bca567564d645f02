"""Faults put into headgate's source on purpose, and the tests that must notice each of them."""
