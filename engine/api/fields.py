"""Building blocks of the request schemas: strict models and fields that take one value only."""

import difflib
import json
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stemkv.engine.api.errors import UNKNOWN_PARAMETER, UNSUPPORTED_VALUE, VALUE_CHARS, printable


class StrictModel(BaseModel):
    """A request object: no coercion, no infinities, and unknown fields are refused by name."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in data:
                if name not in cls.model_fields:
                    raise _unknown(str(name), tuple(cls.model_fields))
        return data


def _unknown(name: str, known: tuple[str, ...]) -> PydanticCustomError:
    near = difflib.get_close_matches(name[:VALUE_CHARS], known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return PydanticCustomError(
        UNKNOWN_PARAMETER,
        "Unknown parameter{hint}",
        {"field": printable(name, VALUE_CHARS), "hint": hint},
    )


def _utf8(text: str) -> str:
    # JSON can spell half a character, which no tokenizer takes.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "string_unicode", "There is half a character at {at}", {"at": error.start}
        ) from None
    return text


Text = Annotated[str, AfterValidator(_utf8)]
"""A string of whole characters."""


def only(*accepted: object) -> tuple[object, ...]:
    """Annotations of a field that is known and not honoured yet: only these values pass.

    Use as `Annotated[Any, *only(None, 0)]`.
    """

    def check(value: Any) -> Any:
        if any(_same(value, neutral) for neutral in accepted):
            return value
        raise PydanticCustomError(
            UNSUPPORTED_VALUE,
            "This value is not supported; {accepted} is",
            {"accepted": " or ".join(json.dumps(neutral) for neutral in accepted)},
        )

    return (AfterValidator(check), WithJsonSchema({"enum": list(accepted)}))


def _same(value: object, neutral: object) -> bool:
    # In Python True equals 1, in JSON it does not.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
