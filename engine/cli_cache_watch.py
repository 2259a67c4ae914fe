"""`stemkv cache accounts`, `curves` and `watch`: who holds what, and what happens."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
import typer

from stemkv.engine.cli_service import (
    REQUEST_SECONDS,
    At,
    ServiceCallError,
    admin_headers,
    admin_url,
    given,
    reply_in,
    unreachable,
)
from stemkv.engine.cli_tables import records, rows, show

_KEY_DIGITS = 12  # of 32
_GIGABYTE_HOUR = 1e9 * 3600


def accounts(at: At) -> None:
    """Show what each tenant or group holds of the pool, may hold, and has lost to whom."""
    reply = at.ask("GET", "accounts")
    if not at.printed(reply):
        show(records([_account(name, each) for name, each in reply["accounts"].items()]))


def curves(at: At) -> None:
    """Show what share each tenant or group would hit with other sizes of cache for itself."""
    reply = at.ask("GET", "curves")
    if at.printed(reply):
        return
    factors = sorted({point["factor"] for each in reply["curves"].values() for point in each})
    lines = []
    for account, points in reply["curves"].items():
        by_factor = {point["factor"]: _share(point) for point in points}
        lines.append([account, *(by_factor.get(factor) for factor in factors)])
    show(rows(["account", *(f"{factor:g} pools" for factor in factors)], lines))


def watch(
    at: At,
    start: Annotated[
        int | None, typer.Option(help="Number of the first event; 0: the oldest that is kept.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="End after so many events.")] = None,
) -> None:
    """Print what happens to blocks as it happens, until interrupted; --json: an object a line."""
    left = count
    with _opened(at, start) as response:
        for kind, data in _events(response):
            typer.echo(json.dumps({"event": kind, **data}) if at.raw else _line(kind, data))
            if left is not None and "number" in data:
                left -= 1
                if left <= 0:
                    return
    raise ServiceCallError(f"{at.url} has ended the stream; is it being stopped?")


def _account(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what fits a line; --json has the rest. Blocks unless a heading says otherwise."""
    lost = sorted(figures["evicted_for"].items(), key=lambda item: -item[1])
    return {
        "account": name,
        "held": figures["held"],
        "in_use": figures["in_use"],
        "cached": figures["cached"],
        "pinned": figures["pinned"],
        "reserve": figures["reserve"],
        "share": figures["share"],
        "cap": figures["cap"],
        "weight": f"{figures['weight']:g}",
        "GB-hours": f"{figures['byte_seconds'] / _GIGABYTE_HOUR:.3g}",
        "lost_to": ", ".join(f"{other} {blocks:,}" for other, blocks in lost) or None,
    }


def _share(point: Mapping[str, Any]) -> str:
    error = point["error"]
    return f"{point['hit_share']:.1%}" + ("" if error is None else f" ± {100 * error:.1f}")


def _line(kind: str, data: Mapping[str, Any]) -> str:
    if kind == "gap":
        return f"GAP: {data['missed']:,} events were missed"
    if kind == "restart":
        return "RESTART: another engine counts its events from 0"
    key = data["key"][:_KEY_DIGITS] or "(tail)"
    return f"{data['number']:>10} {data['seconds']:>14.3f} {kind:<8} {key:<12} {data['account']}"


@contextmanager
def _opened(at: At, start: int | None) -> Iterator[httpx.Response]:
    try:
        with httpx.stream(
            "GET",
            admin_url(at.url, "events/stream"),
            headers=admin_headers(at.state_dir),
            params=given({"start": start}),
            timeout=REQUEST_SECONDS,  # comments come more often, so silence is a dead connection
        ) as response:
            if not response.is_success:
                response.read()
                reply_in(response, at.url)
            yield response
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise unreachable(at.url, error) from error


def _events(response: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield kind and data of each server-sent event."""
    fields: dict[str, str] = {}
    for line in response.iter_lines():
        if not line and "data" in fields:
            yield fields.get("event", "message"), json.loads(fields["data"])
        if not line:
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
