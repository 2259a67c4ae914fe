"""Names for workers."""

import os
import secrets
import socket

from stemkv.kvstore.ids import WorkerId


def new_worker_id() -> WorkerId:
    """Return a name that tells an operator where the process is, and that no other start has."""
    return WorkerId(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")
