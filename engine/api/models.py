"""`GET /v1/models` and `/v1/models/{id}`."""

from typing import Annotated

from fastapi import APIRouter, Depends

from stemkv.engine.api.answers import ModelCard, ModelList
from stemkv.engine.api.generate import check_model
from stemkv.engine.api.service import Service, service_of
from stemkv.engine.client import EngineUnavailable

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.get("/models", summary="List the served models")
async def list_models(service: Annotated[Service, Depends(service_of)]) -> ModelList:
    """Return the one model that this service has."""
    return ModelList(data=[_card(service)])


# A hub id has a slash in it, so the id is the rest of the path.
@router.get("/models/{model_id:path}", summary="Describe a served model")
async def get_model(model_id: str, service: Annotated[Service, Depends(service_of)]) -> ModelCard:
    """Return the model of this name, or a 404."""
    check_model(service, model_id)
    return _card(service)


def _card(service: Service) -> ModelCard:
    try:
        length: int | None = service.client.info.max_model_len
    except EngineUnavailable:
        length = None
    return ModelCard(
        id=service.settings.served_model_name,
        created=service.settings.created,
        max_model_len=length,
    )
