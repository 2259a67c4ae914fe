"""Fixtures and builders that several tests share."""
