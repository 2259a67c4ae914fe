"""The command line: `stemkv serve`, `model`, `tenant`, `cache`, `simulate`, `audit`, `version`.

Exit status: 0 done, 1 failed, 2 a flag or setting is wrong, 130 interrupted. What goes wrong is
told in one line on stderr.
"""

import re
import sys
from collections.abc import Sequence

import typer

import stemkv
from stemkv.engine.cli_audit import audit
from stemkv.engine.cli_cache import app as cache_app
from stemkv.engine.cli_groups import grouped
from stemkv.engine.cli_model import app as model_app
from stemkv.engine.cli_requests import request, requests
from stemkv.engine.cli_serve import serve
from stemkv.engine.cli_service import ServiceCallError
from stemkv.engine.cli_simulate import SimulateError, simulate_trace
from stemkv.engine.cli_tenant import app as tenant_app
from stemkv.engine.client import EngineUnavailable
from stemkv.engine.config import ConfigError
from stemkv.engine.model_fetch import ModelFetchError
from stemkv.engine.tenants import TenantStoreError
from stemkv.kvstore.directory.protocol import DirectoryMismatch, DirectoryUnavailable

FAILED = 1
BAD_SETTING = 2
INTERRUPTED = 130
_SETTING = re.compile(r"^[a-z_]+(?=:)")

app = typer.Typer(
    name="stemkv",
    help="Serve language models to many tenants, and compute no shared prompt prefix twice.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve)
app.add_typer(model_app, name="model")
app.add_typer(tenant_app, name="tenant")
app.add_typer(cache_app, name="cache")
cache_app.command("requests")(grouped(requests))
cache_app.command("request")(grouped(request))
app.command("simulate")(simulate_trace)
app.command("audit")(audit)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"stemkv {stemkv.__version__}")


def run(arguments: Sequence[str]) -> int:
    """Carry out a command line (without the program's name) and return its exit status."""
    try:
        outcome = app(list(arguments), standalone_mode=False, prog_name="stemkv")
    except typer.TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except ConfigError as error:
        # the parts name a setting as their code does, the command line as its flag
        named = _SETTING.sub(lambda name: name[0].replace("_", "-"), str(error))
        return _fail(named, BAD_SETTING)
    except (DirectoryUnavailable, DirectoryMismatch) as error:
        return _fail(f"{error}; mend that, or leave out --redis-url", FAILED)
    except SimulateError as error:
        return _fail(str(error), FAILED)
    except (ModelFetchError, ServiceCallError, EngineUnavailable, TenantStoreError) as error:
        return _fail(str(error), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return outcome if isinstance(outcome, int) else 0


def _fail(message: str, status: int) -> int:
    if not message:  # no arguments were given, and the help has been printed
        return status
    line = " ".join(message.split())
    typer.echo(f"stemkv: {line}", err=True)
    return status


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))
