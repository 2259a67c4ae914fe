"""`create_app`: the whole HTTP service as one ASGI application."""

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

import stemkv
from stemkv.engine.api import (
    admin,
    admin_keep,
    admin_requests,
    admin_watch,
    chat,
    completions,
    models,
    probes,
)
from stemkv.engine.api.auth import check_bind
from stemkv.engine.api.errors import (
    ApiError,
    ErrorResponse,
    on_api_error,
    on_http_exception,
    on_validation_error,
)
from stemkv.engine.api.gate import Gate
from stemkv.engine.api.prompts import PromptEncoder, Tokenizer
from stemkv.engine.api.service import Service
from stemkv.engine.api.settings import ServiceSettings
from stemkv.engine.api.standing import StandingOrders
from stemkv.engine.client import EngineClient
from stemkv.engine.tenants import TenantStore

# The gate checks keys before a body is read; these only tell the OpenAPI document of them.
_TENANT_KEY = HTTPBearer(scheme_name="tenant key", auto_error=False)
_ADMIN_KEY = HTTPBearer(scheme_name="admin key", auto_error=False)


def create_app(
    settings: ServiceSettings, client: EngineClient, tenants: TenantStore, tokenizer: Tokenizer
) -> FastAPI:
    """Return the service around an engine, which the caller starts and closes.

    tokenizer: the served model's, with its chat template. Raises ConfigError if the settings
    would open the service to other machines while no tenant has a key. `app.state.service`
    holds the parts, `app.state.orders` what the engine is kept at.
    """
    check_bind(settings.host, tenants)
    service = Service(
        settings=settings,
        client=client,
        tenants=tenants,
        encoder=PromptEncoder(tokenizer, threads=settings.tokenizer_threads),
        keyed=not tenants.empty(),
    )
    app = FastAPI(
        title="stemkv",
        version=stemkv.__version__,
        description="An OpenAI-compatible service on prefix-cached, paged KV blocks.",
        docs_url=None,  # the pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ApiError: on_api_error,
            RequestValidationError: on_validation_error,
            HTTPException: on_http_exception,
        },
        # One entry for all refusals keeps FastAPI from telling of a 422 that never comes.
        responses={"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}},
    )
    app.state.service = service
    app.state.orders = StandingOrders(service)
    app.add_middleware(Gate, service=service)
    for part in (chat, completions, models):
        app.include_router(part.router, dependencies=[Depends(_TENANT_KEY)])
    for part in (admin, admin_keep, admin_requests, admin_watch):
        app.include_router(part.router, dependencies=[Depends(_ADMIN_KEY)])
    app.include_router(probes.router)
    return app
