"""A program: the service around a fake engine, run as `stemkv serve` runs it.

Arguments: the port, the drain time in seconds, the fake's seconds a step, and "fail" for an
engine that does not start, or "tenant" for a tenant with a quota. Prints "ready PORT" once it is,
and the outcome of a stop.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# It is run as a file, and its neighbours are imported as the tests import them.
sys.path.insert(0, str(Path(__file__).parent.parent))

from stemkv.engine.api.server import run_service
from stemkv.engine.config import ConfigError
from stemkv.engine.messages import GetEvents
from stemkv.engine.tenants import Tenant
from stemkv.engine.tenants_sqlite import SqliteTenantStore
from stemkv.kvstore.quotas import Quota
from support.api_settings import settings
from support.event_source import Events
from support.fake_engine import FakeEngine
from support.keeping_engine import KeepingEngine


class PlainTokenizer:
    """One token a byte: what the service needs of a tokenizer, without the time to import one."""

    chat_template = "messages"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the text's bytes."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the bytes' text."""
        return bytes(token_ids).decode(errors="replace")

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool, **_: Any
    ) -> str:
        """Return the messages' contents in a row."""
        return "".join(message["content"] for message in conversation)


def main() -> None:
    """Serve until told to stop."""
    port, drain, step, *more = sys.argv[1:]
    tokenizer = PlainTokenizer()
    engine = FakeEngine(tokenizer, reply="x" * 100, ready=False, step_seconds=float(step))
    KeepingEngine(engine)
    engine.admin_replies[GetEvents] = Events()
    if "fail" in more:
        engine.start_error = ConfigError("model: does not exist")
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteTenantStore(Path(folder) / "tenants.sqlite3")
        if "tenant" in more:
            store.put_tenant(Tenant("a", quota=Quota(reserve=0.5)))
        try:
            run_service(
                settings(port=int(port), drain_seconds=float(drain)),
                engine,
                store,
                tokenizer,
                on_ready=lambda info, port: print(f"ready {port} {info.model}", flush=True),
            )
        except ConfigError as error:
            print(f"refused {error}", flush=True)
            sys.exit(2)
        finally:
            store.close()
    print(f"closed {engine.closed}", flush=True)


if __name__ == "__main__":
    main()
