"""Requests in, tokens out: plan a step, run it, sample, stream; the service and its commands."""
