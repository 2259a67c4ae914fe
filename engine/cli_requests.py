"""`stemkv cache requests` and `stemkv cache request`: what requests reused, and why not more."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from stemkv.engine.cli_service import At, Tenant, given
from stemkv.engine.cli_tables import pairs, records, show

_ID_LETTERS = 20  # of up to 128, in tables


def requests(
    at: At,
    tenant: Tenant = None,
    reason: Annotated[
        str | None, typer.Option(help="Only those that missed for this, say evicted.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many, up to 1000.")] = 100,
) -> None:
    """List the latest requests: what each reused, and why not more."""
    query = {"tenant": tenant, "reason": reason, "limit": limit}
    reply = at.ask("GET", "requests", query=query)
    if not at.printed(reply):
        show(records([_row(each) for each in reply["requests"]]))


def request(
    at: At,
    request_id: Annotated[str, typer.Argument(help="Of its header, its answer, or the list.")],
) -> None:
    """Show one request, with the texts around the place where reuse ended."""
    reply = at.ask("GET", f"requests/{quote(request_id, safe='')}")
    if at.printed(reply):
        return
    for each in reply["requests"]:
        explanation = each["explanation"]
        plain = {name: value for name, value in each.items() if not isinstance(value, dict)}
        plain |= {"submitted": _time(each["submitted"]), "finish": _finish(each)}
        show(pairs("request", given(plain)))
        if explanation is not None:
            show(pairs("why no more was reused", given(explanation)))


def _row(request: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what fits a line; --json has the rest."""
    miss, first = request["miss"], request["first_token_seconds"]
    return {
        "request": request["request_id"][:_ID_LETTERS],
        "submitted": _time(request["submitted"]),
        "tenant": request["tenant"],
        "prompt_tokens": request["prompt_tokens"],
        "cached_tokens": request["cached_tokens"],
        "miss": None if miss is None else f"{miss['reason']} at {miss['position']}",
        "first_token_ms": None if first is None else f"{1000 * first:.1f}",
        "tokens": request["completion_tokens"],
        "outcome": _finish(request),
    }


def _finish(request: Mapping[str, Any]) -> str:
    """Say how a request ended: why its choices did, each reason once, or what went wrong."""
    if request["outcome"] != "finished":
        return str(request["outcome"])
    return ", ".join(dict.fromkeys(request["finish"]))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
