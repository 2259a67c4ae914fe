"""`stemkv cache`: the admin API of a running service, from the command line."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stemkv.engine.cli_cache_keep import pin, pins, public_app, unpin
from stemkv.engine.cli_cache_watch import accounts, curves, watch
from stemkv.engine.cli_groups import grouped
from stemkv.engine.cli_service import At, PromptIn, Space, given
from stemkv.engine.cli_tables import pairs, records, show

app = typer.Typer(no_args_is_help=True, help="Ask a running service about its cache; flush it.")

_KEY_DIGITS = 12  # of 32, in tables
AUDIT_FOUND = 3  # exit status of `audit` that found violations


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
@grouped
def stats(at: At) -> None:
    """Show the pool, the queues and each tenant's figures."""
    reply = at.ask("GET", "cache")
    if at.printed(reply):
        return
    plain = {name: value for name, value in reply.items() if not isinstance(value, dict)}
    show(pairs("worker", plain))
    show(pairs("pool (blocks)", reply["pool"]))
    show(pairs("queue", reply["queue"]))
    if reply["tenants"]:
        show(records([_tenant(name, row) for name, row in reply["tenants"].items()]))
    for subject, text in reply["orders"]["problems"].items():
        typer.echo(f"NOT IN FORCE: {subject}: {text}")


@app.command()
@grouped
def blocks(
    at: At,
    space: Space,
    state: Annotated[str | None, typer.Option(help="cached or in_use.")] = None,
    limit: Annotated[int, typer.Option(help="Blocks a page, at most 1000.")] = 100,
    cursor: Annotated[int | None, typer.Option(help="From the page before.")] = None,
) -> None:
    """List published blocks and tails."""
    query = space.fields | {"state": state, "limit": limit, "cursor": cursor}
    reply = at.ask("GET", "cache/blocks", query=query)
    if at.printed(reply):
        return
    show(records([_block(block) for block in reply["blocks"]]))
    if reply["next_cursor"] is not None:
        typer.echo(f"more: --cursor {reply['next_cursor']}")


@app.command()
@grouped
def flush(
    by: Annotated[str, typer.Argument(help="all, tenant, adapter, salt or prefix.")],
    at: At,
    space: Space,
    prompt_in: PromptIn,
    wait: Annotated[float, typer.Option(help="Seconds to wait for other workers.")] = 1.0,
) -> None:
    """Flush here and on every worker; exit status 1 if one has not acknowledged."""
    prompt = prompt_in.fields if by == "prefix" else {}
    body = {"by": by, **space.fields, "wait_seconds": wait, **prompt}
    reply = at.ask("POST", "cache/flush", body=body)
    if not at.printed(reply):
        typer.echo(f"flushed {reply['blocks']} blocks ({reply['bytes'] / 1e6:.1f} MB)")
        for worker, done in reply["acknowledged"].items():
            typer.echo(f"  {worker}: {'acknowledged' if done else 'NOT ACKNOWLEDGED'}")
        if reply["directory_error"]:
            typer.echo(f"  directory: {reply['directory_error']}")
    if not reply["complete"]:
        raise typer.Exit(1)


@app.command()
@grouped
def explain(at: At, prompt_in: PromptIn, space: Space) -> None:
    """Say how much of a prompt would be reused now, and why not more."""
    reply = at.ask("POST", "cache/explain", body={**prompt_in.fields, **space.fields})
    if not at.printed(reply):
        show(pairs("explanation", given(reply)))


@app.command()
@grouped
def locate(at: At, prompt_in: PromptIn, space: Space) -> None:
    """Say which workers hold how much of a prompt."""
    reply = at.ask("POST", "cache/locate", body={**prompt_in.fields, **space.fields})
    if at.printed(reply):
        return
    typer.echo(f"prompt: {reply['prompt_tokens']} tokens")
    show(records(reply["workers"]))


@app.command()
@grouped
def audit(at: At) -> None:
    """Check the store's rules on the live structure; exit status 3 if one was broken.

    What is found is repaired: blocks in doubt leave service, and requests that hold them fail.
    """
    reply = at.ask("GET", "audit")
    if not at.printed(reply):
        state = "clean" if reply["clean"] else "VIOLATIONS"
        typer.echo(f"{state}: {reply['blocks']} blocks, {reply['sequences']} sequences")
        for violation in reply["violations"]:
            typer.echo(f"  {violation}")
        if not reply["clean"]:
            out = ", ".join(map(str, reply["quarantined"])) or "none"
            failed = reply["failed_requests"]
            typer.echo(f"repaired: blocks quarantined: {out}; requests failed: {failed}")
    if not reply["clean"]:
        raise typer.Exit(AUDIT_FOUND)


for command in (accounts, curves, watch, pin, unpin, pins):
    app.command()(grouped(command))
app.add_typer(public_app, name="public")
