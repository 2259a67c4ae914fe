"""Everything that an object is made of, as one value that can be compared later."""

import dataclasses
import enum
from collections import deque
from collections.abc import Callable

import numpy as np


def snapshot(thing: object) -> object:
    """Copy an object with all that it holds, arrays and order of dicts included, into a value."""
    return _copy(thing, set())


def _copy(thing: object, above: set[int]) -> object:
    if thing is None or isinstance(thing, (bool, int, float, str, bytes, enum.Enum, np.generic)):
        return thing
    if isinstance(thing, np.ndarray):
        return (thing.dtype.str, thing.shape, thing.tobytes())
    if isinstance(thing, Callable) and not hasattr(thing, "__dict__"):  # type: ignore[arg-type]
        return id(thing)
    if id(thing) in above:
        return "above"
    above = above | {id(thing)}
    if isinstance(thing, dict):
        return tuple((_copy(k, above), _copy(v, above)) for k, v in thing.items())
    if isinstance(thing, (list, tuple, deque)):
        return tuple(_copy(x, above) for x in thing)
    if isinstance(thing, (set, frozenset)):
        return frozenset(_copy(x, above) for x in thing)
    if dataclasses.is_dataclass(thing):
        names = [f.name for f in dataclasses.fields(thing)]
        return (type(thing).__name__, *((n, _copy(getattr(thing, n), above)) for n in names))
    if callable(thing):
        return id(thing)
    if isinstance(thing, memoryview):
        return bytes(thing)
    slots = getattr(type(thing), "__slots__", None)
    parts = vars(thing) if slots is None else {name: getattr(thing, name) for name in slots}
    return (type(thing).__name__, _copy(parts, above))
