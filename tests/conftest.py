"""Fixtures of the whole suite; each comes from a module of tests/support."""

from support.api import api as api
from support.default_model import default_model as default_model
from support.redis_directories import durable_join as durable_join
from support.redis_directories import join as join
from support.redis_server import durable_redis_server as durable_redis_server
from support.redis_server import redis_server as redis_server
from support.tenant_stores import opener as opener
from support.threads import one_torch_thread as one_torch_thread
from support.tiny_models import tiny_model as tiny_model
