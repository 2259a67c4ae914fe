"""`stemkv cache public`, `pin`, `unpin` and `pins`: what is kept on purpose."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from stemkv.engine.cli_groups import grouped
from stemkv.engine.cli_service import Adapter, At, PromptIn, Space, read_json
from stemkv.engine.cli_tables import records, show

public_app = typer.Typer(no_args_is_help=True, help="Prefixes that all tenants share.")


@public_app.command("add")
@grouped
def add_public(
    name: Annotated[str, typer.Argument(help="A name for it.")],
    at: At,
    prompt_in: PromptIn,
    adapter: Adapter = None,
    tools: Annotated[
        Path | None, typer.Option(help="JSON file with the tools that go with the messages.")
    ] = None,
) -> None:
    """Share a prefix among all tenants, now and after restarts; whole blocks of it alone."""
    body = {"name": name, "adapter": adapter, **prompt_in.fields}
    if tools is not None:
        body["tools"] = read_json("tools", tools)
    reply = at.ask("POST", "public", body=body)
    if at.printed(reply):
        return
    held = reply["held"]
    typer.echo(
        f"{name} is public: {held['tokens']:,} of {reply['declared_tokens']:,} tokens,"
        f" {held['blocks']:,} blocks"
    )
    if reply["text_left_out"]:
        typer.echo(f"not in a whole block, so each tenant's own: {reply['text_left_out']!r}")


@public_app.command("list")
@grouped
def list_public(at: At) -> None:
    """List public prefixes."""
    reply = at.ask("GET", "public")
    if at.printed(reply):
        return
    show(records([_prefix(each) for each in reply["public"]]))
    for each in reply["public"]:
        if each["problem"]:
            typer.echo(f"NOT IN FORCE: {each['name']}: {each['problem']}")


@public_app.command("remove")
@grouped
def remove_public(name: Annotated[str, typer.Argument(help="Its name.")], at: At) -> None:
    """Flush a public prefix and share it no more."""
    reply = at.ask("DELETE", f"public/{quote(name, safe='')}")
    if not at.printed(reply):
        state = "" if reply["flushed"] else "; its blocks are flushed as soon as the engine answers"
        typer.echo(f"{name} is public no more{state}")


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a pin is kept, and what of it."""

    seconds: Annotated[float, typer.Option(help="How long to keep it.")]
    max_blocks: Annotated[
        int | None, typer.Option(help="At most so many, from the start of the prompt.")
    ] = None
    priority: Annotated[
        float, typer.Option(help="0 to 1; of pins that must give way the lowest goes first.")
    ] = 1.0
    half_life_seconds: Annotated[
        float | None, typer.Option(help="The priority halves in this time.")
    ] = None


def pin(at: At, prompt_in: PromptIn, space: Space, terms: Terms) -> None:
    """Keep what is cached of a prompt in the cache; exit status 1 if nothing of it is."""
    body = {**prompt_in.fields, **space.fields, **asdict(terms)}
    reply = at.ask("POST", "pins", body=body)
    if not at.printed(reply):
        if reply["kept"]:
            typer.echo(
                f"pin {reply['pin_id']}: {reply['tokens']:,} of {reply['prompt_tokens']:,} tokens,"
                f" {reply['blocks']:,} blocks, for {reply['seconds_left']:g} s"
            )
        else:
            typer.echo("nothing to pin: of this prompt nothing is cached that is not public")
    if not reply["kept"]:
        raise typer.Exit(1)


def unpin(
    pin_id: Annotated[int, typer.Argument(help="Its number, as `pins` has it.")], at: At
) -> None:
    """End a pin."""
    reply = at.ask("DELETE", f"pins/{pin_id}")
    if not at.printed(reply):
        typer.echo(f"unpinned {pin_id}")


def pins(at: At) -> None:
    """List pins."""
    reply = at.ask("GET", "pins")
    if not at.printed(reply):
        show(records([_pin(each) for each in reply["pins"]]))


def _prefix(prefix: Mapping[str, Any]) -> dict[str, Any]:
    held = prefix["held"] or dict.fromkeys(("tokens", "blocks", "cached_blocks"))
    return {
        "name": prefix["name"],
        "adapter": prefix["adapter"] or None,
        "declared": prefix["declared_tokens"],
        "tokens": held["tokens"],
        "blocks": held["blocks"],
        "cached": held["cached_blocks"],
        "in_force": prefix["held"] is not None,
    }


def _pin(pin: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "pin": pin["pin_id"],
        "tenant": pin["tenant"],
        "adapter": pin["adapter"] or None,
        "salt": pin["salt"] or None,
        "tokens": pin["tokens"],
        "blocks": pin["blocks"],
        "seconds_left": f"{pin['seconds_left']:.0f}",
        "priority": f"{pin['priority']:.3g}",
    }
