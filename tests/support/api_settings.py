"""Settings of a service under test."""

import hashlib
from typing import Any

from stemkv.engine.api.settings import ServiceSettings

MODEL = "fake/model"
ADMIN_KEY = "admin-key"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}


def settings(**changes: Any) -> ServiceSettings:
    """Return the settings of a service under test."""
    values: dict[str, Any] = {
        "served_model_name": MODEL,
        "secret": b"s" * 32,
        "admin_key_sha256": hashlib.sha256(ADMIN_KEY.encode()).hexdigest(),
        "created": 1_700_000_000,
        "port": 0,
        "drain_seconds": 1.0,
    }
    return ServiceSettings(**{**values, **changes})
