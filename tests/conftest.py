"""Fixtures of the whole suite; each comes from a module of tests/support."""

from support.default_model import default_model as default_model
from support.tiny_models import tiny_model as tiny_model
