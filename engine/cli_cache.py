"""`stemkv cache`: the admin API of a running service, from the command line."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from stemkv.engine.cli_state import StateDir
from stemkv.engine.cli_tables import pairs, records, show
from stemkv.engine.config import ConfigError
from stemkv.engine.state import ADMIN_KEY_FILE, ADMIN_KEY_VARIABLE, state_path

app = typer.Typer(no_args_is_help=True, help="Ask a running service about its cache; flush it.")

DEFAULT_URL = "http://127.0.0.1:8000"
REQUEST_SECONDS = 60.0
_KEY_DIGITS = 12  # of 32, in tables
AUDIT_FOUND = 3  # exit status of `audit` that found violations

Url = Annotated[str, typer.Option("--url", envvar="STEMKV_URL", help="Address of the service.")]
Raw = Annotated[bool, typer.Option("--json", help="Print the reply as JSON.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Name of a tenant.")]
Adapter = Annotated[str | None, typer.Option("--adapter", help="Name of an adapter.")]
Salt = Annotated[str | None, typer.Option("--salt", help="A cache salt of the tenant.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="The prompt's text.")]
Messages = Annotated[
    Path | None, typer.Option("--messages", help="JSON file with a chat's messages.")
]


class ServiceCallError(Exception):
    """The service could not be reached or refused; one line with the cause and the mend."""


def admin_key(state_dir: Path | None) -> str:
    """Return the environment's admin key, or what the service wrote to its state folder."""
    given = os.environ.get(ADMIN_KEY_VARIABLE)
    if given:
        return given
    path = state_path(state_dir) / ADMIN_KEY_FILE
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ServiceCallError(
            f"no admin key: {path}: {error.strerror}; set {ADMIN_KEY_VARIABLE}, or --state-dir to "
            "the folder that the service was started with"
        ) from error


def call(
    method: str,
    url: str,
    path: str,
    state_dir: Path | None,
    *,
    query: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Ask the admin API and return its reply; raises ServiceCallError."""
    headers = {"authorization": f"Bearer {admin_key(state_dir)}"}
    try:
        response = httpx.request(
            method,
            f"{url.rstrip('/')}/admin/v1/{path}",
            headers=headers,
            params=_given(query or {}),
            json=None if body is None else _given(body),
            timeout=REQUEST_SECONDS,
        )
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ServiceCallError(
            f"cannot reach {url}: {error}; is `stemkv serve` running there? (--url)"
        ) from error
    try:
        reply = response.json()
    except ValueError:
        reply = None
    if isinstance(reply, dict) and response.is_success:
        return reply
    if isinstance(reply, dict) and "error" in reply:
        raise ServiceCallError(f"{response.status_code}: {reply['error']['message']}")
    raise ServiceCallError(f"{url} answered {response.status_code}; is it a stemkv service?")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _prompt(prompt: str | None, messages: Path | None) -> dict[str, Any]:
    if prompt is not None:
        return {"prompt": prompt}
    if messages is None:
        raise ConfigError("prompt: is missing; give --prompt TEXT or --messages FILE")
    try:
        return {"messages": json.loads(messages.read_text(encoding="utf-8"))}
    except (OSError, ValueError) as error:
        raise ConfigError(f"messages: {messages} is no readable JSON file: {error}") from error


def _tenant(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what fits a line; --json has the rest. Tokens unless a heading says otherwise."""
    rate = figures["hit_rate"]
    return {
        "tenant": name,
        "requests": figures["requests"],
        "looked_up": figures["lookup_tokens"],
        "reused": figures["hit_full_tokens"] + figures["hit_partial_tokens"],
        "hit_rate": None if rate is None else f"{rate:.1%}",
        "generated": figures["generated_tokens"],
        "cached_blocks": figures["cached_blocks"],
        "evicted_blocks": figures["evicted_blocks"],
    }


def _block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what fits a line, keys by their beginning; --json has the rest."""
    return {
        "key": None if block["key"] is None else block["key"][:_KEY_DIGITS],
        "tenant": block["tenant"],
        "salt": block["salt"] or None,
        "depth": block["depth"],
        "tokens": block["tokens"],
        "used_by": block["references"],
        "children": block["children"],
        "state": block["state"],
    }


@app.command()
def stats(url: Url = DEFAULT_URL, state_dir: StateDir = None, raw: Raw = False) -> None:
    """Show the pool, the queues and each tenant's figures."""
    reply = call("GET", url, "cache", state_dir)
    if raw:
        typer.echo(json.dumps(reply, indent=1))
        return
    plain = {name: value for name, value in reply.items() if not isinstance(value, dict)}
    show(pairs("worker", plain))
    show(pairs("pool (blocks)", reply["pool"]))
    show(pairs("queue", reply["queue"]))
    if reply["tenants"]:
        show(records([_tenant(name, row) for name, row in reply["tenants"].items()]))


@app.command()
def blocks(
    url: Url = DEFAULT_URL,
    state_dir: StateDir = None,
    tenant: Tenant = None,
    adapter: Adapter = None,
    salt: Salt = None,
    state: Annotated[str | None, typer.Option(help="cached or in_use.")] = None,
    limit: Annotated[int, typer.Option(help="Blocks a page, at most 1000.")] = 100,
    cursor: Annotated[int | None, typer.Option(help="From the page before.")] = None,
    raw: Raw = False,
) -> None:
    """List published blocks and tails."""
    query = {"tenant": tenant, "adapter": adapter, "salt": salt, "state": state}
    query |= {"limit": limit, "cursor": cursor}  # type: ignore[dict-item]
    reply = call("GET", url, "cache/blocks", state_dir, query=query)
    if raw:
        typer.echo(json.dumps(reply, indent=1))
        return
    show(records([_block(block) for block in reply["blocks"]]))
    if reply["next_cursor"] is not None:
        typer.echo(f"more: --cursor {reply['next_cursor']}")


@app.command()
def flush(
    by: Annotated[str, typer.Argument(help="all, tenant, adapter, salt or prefix.")],
    url: Url = DEFAULT_URL,
    state_dir: StateDir = None,
    tenant: Tenant = None,
    adapter: Adapter = None,
    salt: Salt = None,
    prompt: Prompt = None,
    messages: Messages = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for other workers.")] = 1.0,
    raw: Raw = False,
) -> None:
    """Flush here and on every worker; exit status 1 if one has not acknowledged."""
    body: dict[str, Any] = {"by": by, "tenant": tenant, "adapter": adapter, "salt": salt}
    body["wait_seconds"] = wait
    if by == "prefix":
        body |= _prompt(prompt, messages)
    reply = call("POST", url, "cache/flush", state_dir, body=body)
    if raw:
        typer.echo(json.dumps(reply, indent=1))
    else:
        typer.echo(f"flushed {reply['blocks']} blocks ({reply['bytes'] / 1e6:.1f} MB)")
        for worker, done in reply["acknowledged"].items():
            typer.echo(f"  {worker}: {'acknowledged' if done else 'NOT ACKNOWLEDGED'}")
        if reply["directory_error"]:
            typer.echo(f"  directory: {reply['directory_error']}")
    if not reply["complete"]:
        raise typer.Exit(1)


@app.command()
def explain(
    url: Url = DEFAULT_URL,
    state_dir: StateDir = None,
    prompt: Prompt = None,
    messages: Messages = None,
    tenant: Tenant = None,
    adapter: Adapter = None,
    salt: Salt = None,
    raw: Raw = False,
) -> None:
    """Say how much of a prompt would be reused now, and why not more."""
    body = {**_prompt(prompt, messages), "tenant": tenant, "adapter": adapter, "salt": salt}
    reply = call("POST", url, "cache/explain", state_dir, body=body)
    if raw:
        typer.echo(json.dumps(reply, indent=1))
    else:
        show(pairs("explanation", _given(reply)))


@app.command()
def locate(
    url: Url = DEFAULT_URL,
    state_dir: StateDir = None,
    prompt: Prompt = None,
    messages: Messages = None,
    tenant: Tenant = None,
    adapter: Adapter = None,
    salt: Salt = None,
    raw: Raw = False,
) -> None:
    """Say which workers hold how much of a prompt."""
    body = {**_prompt(prompt, messages), "tenant": tenant, "adapter": adapter, "salt": salt}
    reply = call("POST", url, "cache/locate", state_dir, body=body)
    if raw:
        typer.echo(json.dumps(reply, indent=1))
        return
    typer.echo(f"prompt: {reply['prompt_tokens']} tokens")
    show(records(reply["workers"]))


@app.command()
def audit(url: Url = DEFAULT_URL, state_dir: StateDir = None, raw: Raw = False) -> None:
    """Check the store's rules on the live structure; exit status 3 if one is broken."""
    reply = call("GET", url, "audit", state_dir)
    if raw:
        typer.echo(json.dumps(reply, indent=1))
    else:
        state = "clean" if reply["clean"] else "VIOLATIONS"
        typer.echo(f"{state}: {reply['blocks']} blocks, {reply['sequences']} sequences")
        for violation in reply["violations"]:
            typer.echo(f"  {violation}")
    if not reply["clean"]:
        raise typer.Exit(AUDIT_FOUND)
