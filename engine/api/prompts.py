"""From what clients write to token ids: chat template and tokenizer, off the event loop."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import jinja2
import numpy as np
import numpy.typing as npt

from stemkv.engine.api.errors import VALUE_CHARS, ApiError, invalid, printable
from stemkv.engine.api.schemas import Message, ToolCall

T = TypeVar("T")
TokenArray = npt.NDArray[np.int32]

# What a template can raise over messages that it was not written for, beside its own errors.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the service uses."""

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """The Jinja source of the template, or several by name, or None."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        ...

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool, **options: Any
    ) -> str:
        """Return the text that the template makes of a conversation (tokenize=False)."""
        ...


class PromptEncoder:
    """Encodes prompts in threads of its own, so that a long one does not stop the event loop.

    tokenizer: used by all threads at once; `threads` bounds how many. Close it when done.
    """

    def __init__(self, tokenizer: Tokenizer, *, threads: int) -> None:
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        self._template = "".join(template.values()) if isinstance(template, Mapping) else template
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stemkv-tokenizer")
        # The first call switches truncation and padding off inside the tokenizer; later calls
        # find them so and change nothing, which is what makes calls from several threads safe.
        tokenizer.encode("stemkv")

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> TokenArray:
        """Return int32 [tokens] of a conversation; raises `ApiError` naming what was wrong.

        tools: as OpenAI's requests have them; refused if the template leaves them out.
        """
        conversation = [
            self._for_template(message, index) for index, message in enumerate(messages)
        ]
        options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
        return await self._run(lambda: self._chat(conversation, options, tools))

    async def text(self, text: str, *, param: str) -> TokenArray:
        """Return int32 [tokens] of a text with the tokenizer's own special tokens."""
        ids = await self._run(lambda: self._tokenizer.encode(text))
        return as_tokens(ids, param=param)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return await self._run(lambda: self._tokenizer.decode(list(token_ids)))

    def close(self) -> None:
        """Stop the threads once they have done what they are at."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _for_template(self, message: Message, index: int) -> dict[str, Any]:
        where = f"messages[{index}]"
        role: str = message.role
        if role == "developer" and not self._mentions("developer"):
            role = "system"  # OpenAI's newer name for it, which most templates do not know
        entry: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls:
            if not self._mentions("tool_calls"):
                raise invalid(
                    "The model's chat template has no place for tool calls.",
                    param=f"{where}.tool_calls",
                    code="unsupported_value",
                )
            entry["tool_calls"] = [
                _tool_call(call, f"{where}.tool_calls[{at}]")
                for at, call in enumerate(message.tool_calls)
            ]
        for field in ("name", "tool_call_id"):
            if getattr(message, field) is not None:
                entry[field] = getattr(message, field)
        return entry

    def _mentions(self, word: str) -> bool:
        return self._template is not None and word in self._template

    def _chat(
        self,
        conversation: list[dict[str, Any]],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> TokenArray:
        if tools:
            text = self._rendered(conversation, {**options, "tools": list(tools)})
            if text == self._rendered(conversation, options):
                raise invalid(
                    "The model's chat template has no place for tools.",
                    param="tools",
                    code="unsupported_value",
                )
        else:
            text = self._rendered(conversation, options)
        # The template writes its own special tokens; adding them again would double the first.
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return as_tokens(ids, param="messages")

    def _rendered(self, conversation: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
        if self._template is None:
            raise invalid(
                "The model has no chat template; use /v1/completions.",
                param="messages",
                code="no_chat_template",
            )
        try:
            text = self._tokenizer.apply_chat_template(conversation, tokenize=False, **options)
            text.encode()  # half a character can hide in a tool call's own JSON
        except _TEMPLATE_ERRORS as error:
            reason = printable(str(error), 2 * VALUE_CHARS)
            raise invalid(
                f"The model's chat template refuses these messages: {reason}", param="messages"
            ) from None
        return text


def as_tokens(ids: Sequence[int], *, param: str, vocab_size: int | None = None) -> TokenArray:
    """Return ids as int32 [tokens]; refuses an empty prompt and ids outside the vocabulary."""
    tokens = np.asarray(ids, dtype=np.int32)
    if not tokens.size:
        raise invalid("The prompt is empty: it has no tokens.", param=param, code="empty_prompt")
    if vocab_size is not None and (beyond := np.flatnonzero(tokens >= vocab_size)).size:
        at = int(beyond[0])
        raise _outside(tokens[at], f"{param}[{at}]", vocab_size)
    return tokens


def check_token_ids(ids: Sequence[int], *, param: str, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary, naming the first."""
    for at, token in enumerate(ids):
        if token >= vocab_size:
            raise _outside(token, f"{param}[{at}]", vocab_size)


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    # Templates write the arguments as JSON themselves, so a string would be quoted twice.
    entry = call.model_dump()
    try:
        entry["function"]["arguments"] = json.loads(call.function.arguments)
    except ValueError as error:
        raise invalid(
            f"The arguments are not valid JSON: {error}", param=f"{where}.function.arguments"
        ) from None
    return entry


def _outside(token: int, param: str, vocab_size: int) -> ApiError:
    return invalid(
        f"{param}: token id {token} is not in the vocabulary of {vocab_size}.",
        param=param,
        code="invalid_token_id",
    )
