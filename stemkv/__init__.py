"""stemkv: a prefix-caching KV store with the engine and the HTTP service that use it."""

__version__ = "0.1.0"
