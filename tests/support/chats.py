"""Real conversations, from the folder `shared` beside the repository."""

import gzip
import json
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"
Message = dict[str, str]


def _chats() -> Path:
    folder = SHARED / "chats"
    if not folder.is_dir():
        pytest.skip("needs ../shared/chats, which is not beside this repository")
    return folder


def mt_bench_questions() -> list[tuple[str, str]]:
    """Return the two turns of each question."""
    lines = (_chats() / "mt_bench_question.jsonl").read_text().splitlines()
    return [tuple(json.loads(line)["turns"]) for line in lines]


def airline_conversations() -> list[list[Message]]:
    """Return the trajectories' messages that have text, tools written as users."""
    with gzip.open(_chats() / "tau_bench_airline.json.gz") as file:
        trajectories = json.load(file)
    roles = {"system": "system", "assistant": "assistant"}
    return [
        [
            {"role": roles.get(message["role"], "user"), "content": message["content"]}
            for message in trajectory["traj"]
            if message["content"]
        ]
        for trajectory in trajectories
    ]
