"""Quotas as people write them, in flags and files: 10%, 0.1."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, replace

from stemkv.engine.config import ConfigError
from stemkv.kvstore.quotas import Quota

QUOTA_FIELDS = ("reserve", "cap", "weight", "pins")

_SHARE = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<percent>%?)")


def read_quota(fields: Mapping[str, object], base: Quota | None = None) -> Quota:
    """Return a quota with these fields, the others as in `base` (None: as without a quota).

    Shares are numbers from 0 to 1, or text (`10%`, `0.1`); the weight is a number, or its text.
    Raises ConfigError that names field and value.
    """
    read: dict[str, float] = {
        name: _weight(value) if name == "weight" else _share(name, value)
        for name, value in fields.items()
    }
    try:
        return replace(base or Quota(), **read)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def written(quota: Quota) -> dict[str, str]:
    """Return a quota's fields as people read them, shares as percentages."""
    return {
        name: f"{value:g}" if name == "weight" else percent(value)
        for name, value in asdict(quota).items()
    }


def percent(share: float) -> str:
    """Write a share as people do: 12.5%."""
    return f"{100 * share:.6g}%"


def _share(name: str, value: object) -> float:
    if isinstance(value, str) and (match := _SHARE.fullmatch(value.strip())) is not None:
        share = float(match["number"]) / (100 if match["percent"] else 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    else:
        share = math.nan
    if not 0 <= share <= 1:
        raise ConfigError(f"{name}: {value!r} is not a share of the pool; give 10% or 0.1")
    return share


def _weight(value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        weight = float(value)
    except ValueError:
        weight = math.nan
    if not (math.isfinite(weight) and weight > 0):
        raise ConfigError(f"weight: {value!r} is not a positive number; give one like 1 or 2.5")
    return weight
