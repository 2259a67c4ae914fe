"""What the command line turns text into: amounts of memory, settings from a TOML file."""

import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from stemkv.engine.config import ConfigError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*|%)", re.IGNORECASE)


def parse_kv_memory(text: str) -> int | float:
    """Turn `512MiB`, `2GB`, `1000000` into bytes, and `0.3` or `30%` into a share in (0, 1].

    Raises ConfigError.
    """
    match = _AMOUNT.fullmatch(text.strip())
    mend = "give bytes (512MiB, 2GB) or a share of what is free (0.3, 30%)"
    if match is None:
        raise ConfigError(f"kv-memory: {text!r} is no amount of memory; {mend}")
    number, unit = match["number"], match["unit"].lower()
    if unit == "%" or (unit == "" and "." in number):
        share = float(number) / (100 if unit == "%" else 1)
        if not 0 < share <= 1:
            raise ConfigError(f"kv-memory: {text!r} is not a share in (0, 1]; {mend}")
        return share
    if unit not in _UNITS:
        raise ConfigError(f"kv-memory: {text!r} has the unknown unit {unit!r}; {mend}")
    amount = int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]
    if amount < 1:
        raise ConfigError(f"kv-memory: {text!r} holds no block; {mend}")
    return amount


def whole_number(value: str | int) -> int:
    """Turn a flag's text, or a TOML file's value, into a whole number; raises BadParameter."""
    try:
        if isinstance(value, bool | float):
            raise ValueError
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a whole number; give one like 16") from None


def number(value: str | float) -> float:
    """Turn a flag's text, or a TOML file's value, into a number; raises BadParameter."""
    try:
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise ValueError
        return float(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a number; give one like 10 or 0.5") from None


def read_serve_table(path: Path, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the [serve] table of a TOML file as parameters of the command.

    known: setting as written in the file (dashes or underscores) to the parameter's name. The
    values' types are checked where the command's own are, the other tables by who reads them.
    Raises ConfigError.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"config: cannot read {path}: {reason}; give another file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: {path} is not valid TOML: {error}; mend it there") from error
    table = content.get("serve", {})
    if not isinstance(table, dict):
        raise ConfigError(f"config: serve in {path} is not a table; write [serve]")
    settings = {}
    for name, value in table.items():
        parameter = known.get(name.replace("-", "_"))
        if parameter is None:
            names = ", ".join(sorted(known)).replace("_", "-")
            raise ConfigError(f"config: serve.{name} in {path} is not a setting; known: {names}")
        settings[parameter] = value
    return settings
