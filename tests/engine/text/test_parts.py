"""The parts of a reply: thinking and content, whatever pieces the text comes in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.channels import ChannelParts, Channels, begins_message
from engine.text.parts import Parts
from engine.text.stops import StopMatcher
from engine.text.thinking import TaggedParts, Tags

THINK = Tags("<think>", "</think>")
MISTRAL = Tags("[THINK]", "[/THINK]", 1, 2)
TEXT = 0  # the id of a token of plain text
CHANNELS = Channels(start=10, channel=11, message=12, end=13)
IDS = {f"<|{name}|>": token_id for name, token_id in CHANNELS._asdict().items()}

Tokens = Sequence[tuple[int, str]]


def read(
    parts: Parts, tokens: Iterable[tuple[int, str]], stops: tuple[str, ...] = ()
) -> tuple[str, str]:
    """Thinking and content, as the owner of a reply gets them piece by piece."""
    matcher, found = StopMatcher(stops), [("", "")]
    for number, (token_id, text) in enumerate(tokens, 1):
        if matcher.stopped_at is not None:
            break
        parts.read_token(token_id, text)
        found.append(parts.split(matcher.push(text, number)))
    parts.end("")
    found.append(parts.split(matcher.flush()))
    thinking, content = zip(*found, strict=True)
    return "".join(thinking), "".join(content)


def pieces(text: str, cuts: Iterable[int]) -> list[tuple[int, str]]:
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [(TEXT, text[a:b]) for a, b in pairwise(bounds)]


def whole(text: str, *, is_open: bool = False) -> tuple[str, str]:
    return read(TaggedParts(THINK, is_open=is_open), [(TEXT, text)])


CASES = {
    "thinking and content": (
        False,
        "<think>\nHm.\nYes.\n</think>\n\nIt is 4.",
        "Hm.\nYes.",
        "It is 4.",
    ),
    "no line breaks": (False, "<think>Hm.</think>It is 4.", "Hm.", "It is 4."),
    "white space first": (False, " \n<think>Hm.</think>4", "Hm.", "4"),
    "no thinking": (False, "\n It is 4.\n", "", "\n It is 4.\n"),
    "nothing": (False, "", "", ""),
    "empty thinking": (False, "<think>\n\n</think>\n\n4", "", "4"),
    "indented content": (False, "<think>x</think>\n\n    code\n", "x", "    code\n"),
    "cut off": (False, "<think>\nHm. And\n", "Hm. And\n", ""),
    "cut off in the tag": (False, "<think>Hm.</thi", "Hm.</thi", ""),
    "half an opening tag": (False, "<thin", "", "<thin"),
    "another tag": (False, "<thing>x</thing>", "", "<thing>x</thing>"),
    "quoted later": (False, "Tags: <think>x</think>", "", "Tags: <think>x</think>"),
    "closed twice": (False, "<think>a</think>b</think>c", "a", "b</think>c"),
    "tags within": (False, "<think>a </th <think> < b</think>c", "a </th <think> < b", "c"),
    "closed first": (False, "\n</think>\n\n4", "", "4"),
    "two blocks": (False, "<think>a</think>\n<think>\nb</think>c", "a\nb", "c"),
    "an empty one first": (False, "<think>\n\n</think>\n\n<think>b</think>\n\nc", "b", "c"),
    "two, the first opened by the prompt": (True, "a</think><think>b</think>c", "ab", "c"),
    "the second not closed": (False, "<think>a</think>\n\n<think>b", "a\n\nb", ""),
    "half another one": (False, "<think>a</think>\n\n<thin", "a", "<thin"),
    "another one behind content": (
        False,
        "<think>a</think>b <think>c</think>",
        "a",
        "b <think>c</think>",
    ),
    "nothing behind it": (False, "<think>a</think>\n\n", "a", ""),
    "opened by the prompt": (True, "Hm.\n</think>\n\n4", "Hm.", "4"),
    "opened by both": (True, "\n<think>\nHm.</think>4", "Hm.", "4"),
    "closed at once": (True, "</think>4", "", "4"),
    "opened and never closed": (True, "It is 4.", "It is 4.", ""),
    "closed and opened by nobody": (False, "Hm.\n</think>\n\n4", "", "Hm.\n\n\n4"),
    "closed twice by nobody": (False, "a</think>b</think>c", "", "ab</think>c"),
    "closed again at once": (False, "<think>a</think>\n</think>\n\nb", "a", "b"),
    "the closing tag quoted": (
        False,
        "With `</think>` and </think>",
        "",
        "With `</think>` and </think>",
    ),
    "half a closing tag": (False, "a\n</thin", "", "a\n</thin"),
}


@pytest.mark.parametrize("case", CASES)
def test_tags_enclose_the_thinking_at_the_beginning(case: str) -> None:
    is_open, text, thinking, content = CASES[case]
    assert whole(text, is_open=is_open) == (thinking, content)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "\n", " ", "a", "é"])),
    st.lists(st.integers(0, 200)),
    st.booleans(),
)
def test_any_split_of_a_text_gives_the_same_parts(
    words: list[str], cuts: list[int], is_open: bool
) -> None:
    text = "".join(words)
    found = read(TaggedParts(THINK, is_open=is_open), pieces(text, cuts))
    assert found == whole(text, is_open=is_open)
    assert sum(map(len, found)) <= len(text)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "b", "<"])),
    st.lists(st.integers(0, 200)),
    st.sampled_from(["ab", "a\nb", "</think>", "k>a", "b</", "<think>", "\n\n"]),
)
def test_a_stop_string_ends_the_text_where_it_does_without_parts(
    words: list[str], cuts: list[int], stop: str
) -> None:
    text = "".join(words)
    found = read(TaggedParts(THINK, is_open=False), pieces(text, cuts), (stop,))
    before, stopped, _ = text.partition(stop)
    if not stopped:
        assert found == whole(text)
    else:
        # What comes before the stop is told apart as it is in the whole text.
        thinking, content = whole(text)
        assert thinking.startswith(found[0])
        assert content.startswith(found[1])
        for letter in "ab":  # which no tag has
            assert "".join(found).count(letter) == before.count(letter)


def test_only_what_may_be_a_tag_waits() -> None:
    parts = TaggedParts(THINK, is_open=False)
    shown = []
    for text in ("<th", "ink>", "\n", "a", " <", "b", "\n", "\n", "c</", "think", ">", "\n", "d"):
        parts.read_token(TEXT, text)
        shown.append(parts.split(text))
    assert shown == [
        *(("", ""), ("", ""), ("", ""), ("a", ""), (" ", ""), ("<b", "")),
        *(("", ""), ("", ""), ("\n\nc", ""), ("", ""), ("", ""), ("", ""), ("", "d")),
    ]


@pytest.mark.parametrize(
    ("is_open", "texts", "count"),
    [
        (False, ["<", "think", ">", "a", "b", "</think", ">", "\n", "c"], 7),
        (False, ["<think>a</think>b", "c"], 1),
        (False, ["a", "b"], 0),
        (False, ["<", "b"], 0),
        (True, ["a", "b", "</think>", "c"], 3),
        (True, ["<think>", "b", "</think>", "c"], 3),
        (True, ["a", "b"], 2),
    ],
)
def test_tokens_of_the_thinking_are_counted_with_its_tags(
    is_open: bool, texts: list[str], count: int
) -> None:
    parts = TaggedParts(THINK, is_open=is_open)
    read(parts, [(TEXT, text) for text in texts])
    assert parts.num_thinking == count


@pytest.mark.parametrize(
    ("texts", "expected", "count", "closes_unopened"),
    [
        ([1, "Hm.", "\n", 2, "\n4 ", 2, 1, "5"], ("Hm.", "4 5"), 4, False),
        ([1, "a", 2, "\n", 1, "b", 2, "c"], ("a\nb", "c"), 7, False),  # all but the last
        (["4", 1, "5", 2], ("", "45"), 0, False),  # behind content it is none
        (["Hm.", 2, "4", 2, 1], ("", "Hm.4"), 0, True),
    ],
)
def test_tags_may_be_special_tokens_which_have_no_text(
    texts: list[int | str], expected: tuple[str, str], count: int, closes_unopened: bool
) -> None:
    parts = TaggedParts(MISTRAL, is_open=False)
    tokens = [(one, "") if isinstance(one, int) else (TEXT, one) for one in texts]
    assert read(parts, tokens) == expected
    assert (parts.num_thinking, parts.closes_unopened) == (count, closes_unopened)


@pytest.mark.parametrize(
    ("prompt", "begins", "is_open"),
    [
        ("assistant\n", False, False),
        ("assistant\n<think>\n", False, True),
        ("assistant\n", True, True),
        ("assistant\n<think>\n", True, True),
        ("assistant\n<think>\n\n</think>\n\n", True, False),  # enable_thinking is false
        ("<｜Assistant｜></think>", True, False),  # DeepSeek V3.1, which does not think then
    ],
)
def test_the_end_of_the_prompt_tells_how_a_reply_begins(
    prompt: str, begins: bool, is_open: bool
) -> None:
    assert THINK.are_open(prompt, begins=begins) is is_open


def channel_tokens(text: str) -> Tokens:
    """Tokens of a reply that is written with its markers, words one by one."""
    spaced = text
    for marker in IDS:
        spaced = spaced.replace(marker, f"\0{marker}\0")
    found: list[tuple[int, str]] = []
    for part in filter(None, spaced.split("\0")):
        if part in IDS:
            found.append((IDS[part], ""))
        else:
            found += [(TEXT, word) for word in part.replace(" ", "\0 ").split("\0") if word]
    return found


HARMONY = (
    "<|channel|>analysis<|message|>Two and two<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me see. <|end|>"
    "<|start|>assistant<|channel|>analysis<|message|> is four<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is 4."
)


def test_channels_tell_thinking_from_what_is_said() -> None:
    parts = ChannelParts(CHANNELS, has_begun=True)
    assert read(parts, channel_tokens(HARMONY)) == ("Two and two is four", "Let me see. It is 4.")
    # Of each analysis: the channel, its name, the mark of the message, the words and the end.
    assert parts.num_thinking == (3 + 3 + 1) + (3 + 2 + 1)


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_reply_without_thinking_is_all_content(has_begun: bool) -> None:
    parts = ChannelParts(CHANNELS, has_begun=has_begun)
    text = "<|channel|>final<|message|>It is 4."
    assert read(parts, channel_tokens(text)) == ("", "It is 4.")
    assert parts.num_thinking == 0


def test_what_follows_a_prompt_that_is_no_chat_is_content() -> None:
    parts = ChannelParts(CHANNELS, has_begun=False)
    assert read(parts, channel_tokens("It is 4.")) == ("", "It is 4.")


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.sum json",
        " to=functions.sum<|channel|>commentary json",
    ],
)
def test_a_call_of_a_tool_is_content_as_it_was_written(header: str) -> None:
    thought = "<|channel|>analysis<|message|>Sum them.<|end|><|start|>assistant"
    tokens = channel_tokens(f'{thought}{header}<|message|>{{"a": 2}}')
    parts = ChannelParts(CHANNELS, has_begun=True)
    thinking, content = read(parts, tokens)
    assert thinking == "Sum them."
    assert "to=functions.sum" in content
    assert "commentary" in content
    assert content.endswith('json{"a": 2}')


def test_a_header_that_is_too_long_for_one_is_shown() -> None:
    text = "x" * 300
    for size in (1, 7, 300):
        tokens = [(TEXT, text[i : i + size]) for i in range(0, 300, size)]
        assert read(ChannelParts(CHANNELS, has_begun=True), tokens) == ("", text)


@given(st.lists(st.integers(0, 400)))
def test_any_split_of_the_text_of_channels_gives_the_same_parts(cuts: list[int]) -> None:
    text = f"{HARMONY}<|end|><|start|>assistant<|channel|>commentary to=f json<|message|>{{}}"
    tokens: list[tuple[int, str]] = []
    for token_id, piece in channel_tokens(text):
        tokens += pieces(piece, cuts) if piece else [(token_id, "")]
    whole_text = read(ChannelParts(CHANNELS, has_begun=True), channel_tokens(text))
    assert read(ChannelParts(CHANNELS, has_begun=True), tokens) == whole_text


def test_the_header_of_a_message_is_seen_in_the_prompt() -> None:
    assert begins_message("<|end|><|start|>assistant")
    assert not begins_message("<|start|>user<|message|>assistant")


def vocabulary(
    template: str = "",
    added: Iterable[str] = (),
    special: Iterable[str] = (),
    response_template: object = None,
) -> SimpleNamespace:
    texts = [*added, *special]
    ids = {text: number for number, text in enumerate(texts)}
    return SimpleNamespace(
        template=template,
        response_template=response_template,
        added={ids[text]: text for text in texts},
        special={ids[text]: text for text in special},
    )


@pytest.mark.parametrize(
    ("known", "tags"),
    [
        (vocabulary(), None),
        (vocabulary("{{ m.content }}"), None),
        (vocabulary("{{ m.content.split('</think>')[-1] }}"), THINK),
        (vocabulary(added=["<think>", "</think>"]), THINK),
        (vocabulary(added=["<think>"]), None),
        (vocabulary(special=["x", "[THINK]", "[/THINK]"]), MISTRAL),
        (
            vocabulary(
                "</think>",
                response_template={"fields": {"thinking": {"open": "<a>", "close": "</a>\n"}}},
            ),
            Tags("<a>", "</a>"),
        ),
        (vocabulary("</think>", response_template={"fields": {"thinking": {"open": 1}}}), THINK),
        (vocabulary("</think>", response_template=["fields"]), THINK),
    ],
)
def test_tags_are_found_from_template_and_tokens(known: SimpleNamespace, tags: Tags | None) -> None:
    assert Tags.find(known) == tags  # type: ignore[arg-type]


def test_channels_are_found_from_special_tokens() -> None:
    names = [f"<|{name}|>" for name in Channels._fields]
    assert Channels.find(vocabulary(special=names)) == Channels(0, 1, 2, 3)  # type: ignore[arg-type]
    assert Channels.find(vocabulary(special=names[1:])) is None  # type: ignore[arg-type]
    assert Channels.find(vocabulary(added=names)) is None  # type: ignore[arg-type]
