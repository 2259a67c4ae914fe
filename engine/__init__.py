"""Requests in, tokens out: plan a step, run it, sample, stream; the HTTP service and the command line."""
