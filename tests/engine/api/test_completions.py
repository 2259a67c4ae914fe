from typing import Any

import pytest
from openai.types import Completion
from support.api import Api, served_api, text_body

from stemkv.engine.request import Failed


async def _complete(api: Api, prompt: Any = "Hi", **changes: Any) -> Completion:
    response = await api.http.post("/v1/completions", json=text_body(prompt, **changes))
    assert response.status_code == 200, response.text
    return Completion.model_validate_json(response.text, strict=True)


def _prompts(api: Api) -> list[list[int]]:
    return [request.prompt.tolist() for request in api.engine.submitted]


async def test_a_string_prompt_gets_the_tokenizers_bos(api: Api) -> None:
    """A text is encoded as the tokenizer does by itself, and answered in OpenAI's shape."""
    answer = await _complete(api, "Hi")
    assert _prompts(api) == [api.engine.tokenizer.encode("Hi")]
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text == "Hello, wörld"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
async def test_token_ids_are_taken_as_they_are(
    api: Api, prompt: Any, expected: list[list[int]]
) -> None:
    """One list of ids is one prompt, a list of lists is several; nothing is added."""
    answer = await _complete(api, prompt)
    assert _prompts(api) == expected
    assert len(answer.choices) == len(expected)


async def test_choices_of_several_prompts_are_numbered_as_openai_does(api: Api) -> None:
    """All choices of the first prompt come first; usage adds up over the prompts."""
    answer = await _complete(api, ["a", "bb"], n=2, max_tokens=3, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == ["aHel", "aHel", "bbHel", "bbHel"]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2 + 3
    assert answer.usage.completion_tokens == 12


async def test_echo_of_token_ids_is_their_text(api: Api) -> None:
    """A prompt given as ids is echoed as text."""
    ids = api.engine.tokenizer.encode("é!", add_special_tokens=False)
    answer = await _complete(api, ids, echo=True, max_tokens=2)
    assert answer.choices[0].text == "é!He"


async def test_sixteen_tokens_unless_told(api: Api) -> None:
    """The default length is OpenAI's, and shorter where less fits."""
    await _complete(api)
    longest = api.engine.info.longest_prompt
    await _complete(api, [1] * longest)
    assert [request.sampling.max_tokens for request in api.engine.submitted] == [16, 1]


async def test_logprobs_have_offsets_into_the_text(api: Api) -> None:
    """text_offset counts characters, also where a character has two tokens."""
    answer = await _complete(api, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11]
    assert logprobs.tokens is not None
    assert logprobs.tokens[:2] == ["H", "e"]
    assert logprobs.tokens[8:10] == ["bytes:\\xc3", "bytes:\\xb6"]
    assert logprobs.token_logprobs == [-0.5] * 13
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"H": -0.5, "I": -1.5}


async def test_zero_logprobs_still_tell_the_chosen_token(api: Api) -> None:
    """Logprobs 0 reports the drawn tokens without rivals."""
    answer = await _complete(api, logprobs=0, max_tokens=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs == [{"H": -0.5}, {"e": -0.5}]


async def test_prompts_times_n_are_bounded() -> None:
    """More choices than the service allows are refused, naming what made them so many."""
    async with served_api(max_choices=3) as api:
        for body, param in (
            (text_body(["a"] * 4), "prompt"),
            (text_body(["a", "b"], n=2), "n"),
            (text_body("a", n=4), "n"),
        ):
            response = await api.http.post("/v1/completions", json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
        assert not api.engine.submitted


async def test_one_failed_prompt_ends_the_whole_request(api: Api) -> None:
    """If one of several prompts fails, the answer is its error and the others are aborted."""
    api.engine.step_seconds = 0.01
    api.engine.fail = lambda request_id: (
        Failed(request_id, "rejected", "too strange", "prompt")
        if request_id.endswith("-1")
        else None
    )
    response = await api.http.post("/v1/completions", json=text_body(["a", "b"]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert [request_id[-2:] for request_id in api.engine.aborted] == ["-0"]
