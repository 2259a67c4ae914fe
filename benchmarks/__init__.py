"""Figures, each by one command: `python -m benchmarks.NAME` (see each module for its flags)."""
