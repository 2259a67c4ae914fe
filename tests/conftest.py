"""Fixtures of the whole suite; each comes from a module of tests/support."""
