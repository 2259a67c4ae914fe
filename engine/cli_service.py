"""How the command line asks a running service: the call itself, and the options of those who do.

Options that stand together are one dataclass each: see `grouped`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from stemkv.engine.cli_state import StateDir
from stemkv.engine.config import ConfigError
from stemkv.engine.state import ADMIN_KEY_FILE, ADMIN_KEY_VARIABLE, state_path

DEFAULT_URL = "http://127.0.0.1:8000"
REQUEST_SECONDS = 60.0

Url = Annotated[str, typer.Option("--url", envvar="STEMKV_URL", help="Address of the service.")]
Raw = Annotated[bool, typer.Option("--json", help="Print the reply as JSON.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Name of a tenant.")]
Adapter = Annotated[str | None, typer.Option("--adapter", help="Name of an adapter.")]
Salt = Annotated[str | None, typer.Option("--salt", help="A cache salt of the tenant.")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="The prompt's text.")]
Messages = Annotated[
    Path | None, typer.Option("--messages", help="JSON file with a chat's messages.")
]
TokenIds = Annotated[
    Path | None, typer.Option("--token-ids", help="JSON file with a list of token ids.")
]


class ServiceCallError(Exception):
    """The service could not be reached or refused; one line with the cause and the mend."""


@dataclass(frozen=True, slots=True)
class At:
    """Which service is asked, and whether its reply is printed as it comes."""

    url: Url = DEFAULT_URL
    state_dir: StateDir = None
    raw: Raw = False

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Ask the admin API and return its reply; raises ServiceCallError."""
        return call(method, self.url, path, self.state_dir, query=query, body=body)

    def printed(self, reply: object) -> bool:
        """Print a reply as JSON if that is wanted; whether it was."""
        if self.raw:
            typer.echo(json.dumps(reply, indent=1))
        return self.raw


@dataclass(frozen=True, slots=True)
class Space:
    """Whose cache is meant."""

    tenant: Tenant = None
    adapter: Adapter = None
    salt: Salt = None

    @property
    def fields(self) -> dict[str, str | None]:
        """The part of a query or body that says so."""
        return {"tenant": self.tenant, "adapter": self.adapter, "salt": self.salt}


@dataclass(frozen=True, slots=True)
class PromptIn:
    """A prompt, in one of three ways."""

    prompt: Prompt = None
    messages: Messages = None
    token_ids: TokenIds = None

    @property
    def fields(self) -> dict[str, Any]:
        """The part of a body that has the prompt; raises ConfigError if there is none."""
        if self.prompt is not None:
            return {"prompt": self.prompt}
        if self.messages is not None:
            return {"messages": read_json("messages", self.messages)}
        if self.token_ids is not None:
            return {"token_ids": read_json("token-ids", self.token_ids)}
        raise ConfigError(
            "prompt: is missing; give --prompt TEXT, --messages FILE or --token-ids FILE"
        )


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
    headers = admin_headers(state_dir)
    try:
        response = httpx.request(
            method,
            admin_url(url, path),
            headers=headers,
            params=given(query or {}),
            json=None if body is None else given(body),
            timeout=REQUEST_SECONDS,
        )
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise unreachable(url, error) from error
    return reply_in(response, url)


def reply_in(response: httpx.Response, url: str) -> dict[str, Any]:
    """Return the object that a response holds; raises ServiceCallError if it is a refusal."""
    try:
        reply = response.json()
    except ValueError:
        reply = None
    if isinstance(reply, dict) and response.is_success:
        return reply
    if isinstance(reply, dict) and "error" in reply:
        raise ServiceCallError(f"{response.status_code}: {reply['error']['message']}")
    raise ServiceCallError(f"{url} answered {response.status_code}; is it a stemkv service?")


def unreachable(url: str, error: Exception) -> ServiceCallError:
    """Return what is raised when no service answers."""
    return ServiceCallError(
        f"cannot reach {url}: {error}; is `stemkv serve` running there? (--url)"
    )


def admin_url(url: str, path: str) -> str:
    """Return the address of an admin endpoint."""
    return f"{url.rstrip('/')}/admin/v1/{path}"


def admin_headers(state_dir: Path | None) -> dict[str, str]:
    """Return the headers that open the admin API; raises ServiceCallError if no key is found."""
    return {"authorization": f"Bearer {admin_key(state_dir)}"}


def admin_key(state_dir: Path | None) -> str:
    """Return the environment's admin key, or what the service wrote to its state folder."""
    told = os.environ.get(ADMIN_KEY_VARIABLE)
    if told:
        return told
    path = state_path(state_dir) / ADMIN_KEY_FILE
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ServiceCallError(
            f"no admin key: {path}: {error.strerror}; set {ADMIN_KEY_VARIABLE}, or --state-dir to "
            "the folder that the service was started with"
        ) from error


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is None."""
    return {name: value for name, value in values.items() if value is not None}


def read_json(option: str, path: Path) -> Any:
    """Return what a JSON file holds; raises ConfigError that names the option."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option}: {path} is no readable JSON file: {error}") from error
