"""Public prefixes as the operator declares them, and as the store of tenants keeps them."""

import re
from dataclasses import dataclass

from stemkv.engine.config import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first"


class PrefixNameTakenError(ValueError):
    """Another public prefix has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a public prefix {name!r} of other tokens is declared already")


@dataclass(frozen=True, slots=True)
class DeclaredPrefix:
    """A prefix that all tenants are to share, under the operator's name for it.

    prompt: little-endian int32 tokens. fingerprint: of the model that it was declared for.
    text_sha256: 32 bytes, over the UTF-8 text of its tokens: with another tokenizer they would
    mean something else. created: unix seconds. Raises ConfigError on a name that is none.
    """

    name: str
    prompt: bytes
    fingerprint: str
    text_sha256: bytes
    created: float
    adapter: str = ""

    def __post_init__(self) -> None:
        """Refuse names that would not print or not fit a path."""
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is not a name ({NAME_RULE})")

    @property
    def tokens(self) -> int:
        """How many tokens were declared; what is public of them are whole blocks."""
        return len(self.prompt) // 4

    def same_as(self, other: "DeclaredPrefix") -> bool:
        """Whether both declare the same, whenever that was."""
        return (self.name, self.prompt, self.adapter, self.fingerprint, self.text_sha256) == (
            other.name,
            other.prompt,
            other.adapter,
            other.fingerprint,
            other.text_sha256,
        )
