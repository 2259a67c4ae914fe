"""Prompts of an exact length in tokens, all different, the same in every run."""

import random
from typing import Any

Message = dict[str, str]

SUBJECTS = ("the harbour", "a clerk", "the night train", "our archive", "the orchard", "a baker")
VERBS = ("keeps", "moves", "measures", "forgets", "repairs", "lists", "counts", "returns")
OBJECTS = ("old maps", "wet coats", "the ledgers", "seven lamps", "grain", "copper wire", "letters")
WHENS = ("before noon", "in winter", "at the door", "without a word", "by the river", "twice a day")
QUESTIONS = (
    "What should I read first?",
    "Who keeps the ledgers here?",
    "When does the night train leave?",
    "Why was the orchard moved?",
)


def _sentence(rng: random.Random) -> str:
    words = (rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS), rng.choice(WHENS))
    return f"On page {rng.randrange(1000)}, {' '.join(words)}. "


def text_of(tokenizer: Any, tokens: int, seed: int) -> str:
    """Return text of `tokens` tokens (as near as cutting at a token's border allows)."""
    rng = random.Random(seed)
    text = ""
    while True:
        text += "".join(_sentence(rng) for _ in range(32))
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= tokens:
            cut: str = tokenizer.decode(ids[:tokens])
            return cut


def chat(system: str, question: int) -> list[Message]:
    """Return a chat with that system prompt and one of many questions."""
    text = f"{QUESTIONS[question % len(QUESTIONS)]} ({question})"
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]
