"""Text arrives whole, in time, and cut where it should be."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import build_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stemkv.engine.detokenizer import Detokenizer
from stemkv.engine.request import SamplingParams
from stemkv.engine.token_table import TokenTable

SAMPLES = (
    "plain words, and a  double space",
    "naïve café — ½ €",
    "你好，世界。こんにちは",
    "👩‍👩‍👧‍👦 🇩🇪 🤷🏽‍♂️",
    "e\u0301 a\u0308 combining",
    " leading space\n\tand\r\nlines ",
)
WORDS = ("▁", "▁the", "▁qu", "ick", "▁fox", "s", ".", "e", "f", "x", "▁▁", "t", "h", "o")


def merged_byte_level() -> Any:
    """Return byte-level BPE with merges, some of which end inside a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    mark = {byte: character for character, byte in _byte_of(alphabet).items()}
    pairs = [(0xE4, 0xBD), (0xF0, 0x9F), (0x20, 0x61), (0xA0, 0xE5)]
    merges = [(mark[a], mark[b]) for a, b in pairs]
    tokens = alphabet + [a + b for a, b in merges]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", extra_special_tokens=["<naïve mark>"]
    )


def _byte_of(alphabet: list[str]) -> dict[str, int]:
    """Return the alphabet's bytes, read off what the library's own pre-tokenizer writes."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found = {}
    for point in [*range(0x80), *range(0x80, 0x800, 0x40), *range(0x80, 0xC0), 0x800, 0x4F60]:
        encoded = chr(point).encode()
        found.update(zip(level.pre_tokenize_str(chr(point))[0][0], encoded, strict=True))
    for point in (0xFFFF, 0x1F600, 0x10FFFF, *range(0x1000, 0x10000, 0x1000)):
        if 0xD800 <= point < 0xE000:
            continue
        encoded = chr(point).encode()
        found.update(zip(level.pre_tokenize_str(chr(point))[0][0], encoded, strict=True))
    assert set(found) <= set(alphabet)
    return found


def sentencepiece() -> Any:
    """Return a Llama-2-style tokenizer: a mark for the space, bytes as <0xNN>, one space cut."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    backend = Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def wordpiece() -> Any:
    """Return a tokenizer whose decoder looks at neighbours: no plain join of bytes."""
    tokens = ["[UNK]", "[SEP]", "play", "##ing", "##ed", "the", "s", "##s", "你", "."]
    backend = Tokenizer(
        models.WordPiece(vocab={t: i for i, t in enumerate(tokens)}, unk_token="[UNK]")
    )
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, sep_token="[SEP]", clean_up_tokenization_spaces=False
    )


TOKENIZERS = {
    "bytes": build_tokenizer(),
    "merged": merged_byte_level(),
    "sentencepiece": sentencepiece(),
    "wordpiece": wordpiece(),
}
TABLES = {name: TokenTable(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def decode(name: str, ids: list[int], skip: bool = True) -> str:
    """Return the tokenizer's own decoding."""
    text: str = TOKENIZERS[name].decode(
        ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
    )
    return text


def stream(
    name: str, ids: list[int], *, prompt: list[int] | None = None, skip: bool = True, **params: Any
) -> tuple[list[str], Detokenizer]:
    """Push all ids; return the deltas, the flushed rest last, and the detokenizer."""
    detokenizer = Detokenizer(TABLES[name], prompt or [], SamplingParams(**params), skip)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    return [*deltas, detokenizer.flush()], detokenizer


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("name", ["bytes", "merged", "sentencepiece"])
def test_samples_stream_whole(name: str, text: str) -> None:
    """Emoji, CJK and combining marks come out as they went in, never half a character."""
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    deltas, _ = stream(name, ids)
    assert "".join(deltas) == decode(name, ids) == text
    assert not any("\ufffd" in delta for delta in deltas)


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40), name=st.sampled_from(["bytes", "merged", "sentencepiece"]))
def test_any_text_streams_whole(text: str, name: str) -> None:
    """For any text, the deltas add up to the tokenizer's own decoding."""
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    deltas, _ = stream(name, ids)
    assert "".join(deltas) == decode(name, ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(["bytes", "merged", "wordpiece"]), skip=st.booleans())
def test_any_ids_add_up_to_the_decoding(data: st.DataObject, name: str, skip: bool) -> None:
    """For random ids, broken characters and special tokens included, nothing is lost or added."""
    ids = data.draw(st.lists(st.integers(0, len(TOKENIZERS[name]) - 1), max_size=30))
    deltas, _ = stream(name, ids, skip=skip)
    assert "".join(deltas) == decode(name, ids, skip)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_sentencepiece_ids_are_their_bytes(data: st.DataObject) -> None:
    """Random SentencePiece ids give their bytes' text, less the one space at the beginning."""
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    deltas, _ = stream("sentencepiece", ids, skip=False)
    raw = b""
    for token in tokenizer.convert_ids_to_tokens(ids):
        is_byte = token.startswith("<0x")
        raw += bytes.fromhex(token[3:5]) if is_byte else token.replace("▁", " ").encode()
    text = raw.decode("utf-8", "replace")
    assert "".join(deltas) == text.removeprefix(" ")


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.text(min_size=1, max_size=10),
    text=st.text(max_size=20),
    name=st.sampled_from(["bytes", "merged", "sentencepiece"]),
)
def test_output_continues_the_prompt(prompt: str, text: str, name: str) -> None:
    """Prompt and output texts, joined, are the text of prompt and output tokens."""
    before = TOKENIZERS[name].encode(prompt, add_special_tokens=False)
    after = TOKENIZERS[name].encode(text, add_special_tokens=False)
    deltas, _ = stream(name, after, prompt=before)
    assert decode(name, before) + "".join(deltas) == decode(name, before + after)


def test_wordpiece_continues_the_prompt() -> None:
    """A decoder that joins words with spaces knows the word before."""
    deltas, _ = stream("wordpiece", [3, 5, 7, 9], prompt=[5, 2])
    assert "".join(deltas) == decode("wordpiece", [5, 2, 3, 5, 7, 9])[len("the play") :]


def test_a_character_is_held_back_until_it_is_whole() -> None:
    """Three bytes of an emoji give nothing, the fourth gives it."""
    ids = TOKENIZERS["bytes"].encode("a😀b")
    deltas, _ = stream("bytes", ids)
    assert deltas == ["a", "", "", "", "😀", "b", ""]


def test_half_a_character_at_the_end_is_replaced() -> None:
    """What stays incomplete is shown as the tokenizer shows it, on flush and not before."""
    ids = TOKENIZERS["bytes"].encode("a😀")[:3]
    deltas, _ = stream("bytes", ids)
    assert deltas == ["a", "", "", "\ufffd"]
    assert "".join(deltas) == decode("bytes", ids)


def test_a_character_split_by_the_prompt_belongs_to_the_output() -> None:
    """A prompt that ends inside a character does not break the character."""
    ids = TOKENIZERS["bytes"].encode("é!")
    deltas, _ = stream("bytes", ids[1:], prompt=ids[:1])
    assert "".join(deltas) == "é!"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens(skip: bool) -> None:
    """Special tokens are text only if asked for."""
    ids = [257, *TOKENIZERS["bytes"].encode("hi"), 258]
    deltas, _ = stream("bytes", ids, skip=skip)
    assert "".join(deltas) == ("hi" if skip else "<|im_start|>hi<|im_end|>")


def test_ids_beyond_the_vocabulary_are_empty() -> None:
    """A padded vocabulary's ids have no text."""
    assert stream("bytes", [262, 263])[0] == ["", "", ""]
    assert TABLES["bytes"].token_bytes(263) == b""


def spelled(text: str) -> list[int]:
    """Return one token a byte."""
    ids: list[int] = TOKENIZERS["bytes"].encode(text)
    return ids


def test_stop_string_across_tokens() -> None:
    """The text ends before the stop string, of which nothing was ever emitted."""
    deltas, detokenizer = stream("bytes", spelled("one STOP two"), stop=("STOP",))
    assert "".join(deltas) == "one "
    assert detokenizer.stop_reason == "STOP"


def test_what_only_began_like_a_stop_string_comes_later() -> None:
    """Held text is released as soon as it can be no stop string, or on flush."""
    deltas, detokenizer = stream("bytes", spelled("abxab"), stop=("abc",))
    assert deltas == ["", "", "abx", "", "", "ab"]
    assert detokenizer.stop_reason is None


@pytest.mark.parametrize(
    ("text", "stops", "expected", "reason"),
    [
        ("xabcd", ("abcd", "bc"), "xa", "bc"),
        ("xabcd", ("bcd", "abcd"), "x", "abcd"),
        ("aaab", ("aab",), "a", "aab"),
        ("abababc", ("ababc",), "ab", "ababc"),
        ("né", ("é",), "n", "é"),
        ("ab", ("", "b"), "a", "b"),
        ("xyz", ("y", "yz"), "x", "y"),
    ],
)
def test_stop_strings_that_overlap(
    text: str, stops: tuple[str, ...], expected: str, reason: str
) -> None:
    """The first to end counts; of those that end together, the longest."""
    deltas, detokenizer = stream("bytes", spelled(text), stop=stops)
    assert "".join(deltas) == expected
    assert detokenizer.stop_reason == reason


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="abé", max_size=20),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_stop_strings_against_a_plain_search(text: str, stops: list[str]) -> None:
    """The text is what a search over the whole of it says, and no delta has to be taken back."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    deltas, detokenizer = stream("bytes", spelled(text), stop=tuple(stops))
    if not ends:
        assert "".join(deltas) == text
        assert detokenizer.stop_reason is None
        return
    end, _, reason = min(ends)
    assert "".join(deltas) == text[: end - len(reason)]
    assert detokenizer.stop_reason == reason


def test_nothing_follows_a_stop_string() -> None:
    """Tokens of a step that ran on after the stop add nothing."""
    _, detokenizer = stream("bytes", spelled("a!"), stop=("!",))
    assert detokenizer.push(spelled("z")[0]) == ""
    assert detokenizer.flush() == ""


def test_token_bytes_of_each_family() -> None:
    """Single tokens are their bytes: half characters, marked spaces, byte tokens, added tokens."""
    merged = TOKENIZERS["merged"]
    half = merged.encode("你", add_special_tokens=False)[0]
    assert TABLES["merged"].token_bytes(half) == b"\xe4\xbd"
    assert TABLES["merged"].token_text(half) == "\ufffd"
    mark = merged.convert_tokens_to_ids("<naïve mark>")
    assert TABLES["merged"].token_text(mark) == "<naïve mark>"
    pieces = TOKENIZERS["sentencepiece"]
    table = TABLES["sentencepiece"]
    assert table.token_bytes(pieces.convert_tokens_to_ids("▁the")) == b" the"
    assert table.token_bytes(pieces.convert_tokens_to_ids("<0xE4>")) == b"\xe4"
    assert TABLES["wordpiece"].token_text(2) == "play"
