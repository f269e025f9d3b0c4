"""A reply that was cut off is gone on with as if it had not been."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason, Timings
from engine.api.sampling import SamplingParams
from engine.api.stream import Context, Delta, RequestStream, Usage
from engine.batch.plan import End, TokenOutput
from engine.text.channels import Channels
from engine.text.codec import ChatCodec
from engine.text.encoder import ChatEncoder, partial_text
from engine.text.processor import OutputProcessor
from engine.text.thinking import Tags
from engine.text.vocabulary import Vocabulary
from tests.support.encoding import Here

KEY = "model@revision:float32"
TEMPLATE = (
    "{%- for m in messages -%}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
THINK = Tags("<think>", "</think>")
CHANNELS = Channels(start=10, channel=11, message=12, end=13)
REPLY = "<think>\nthe cat 日本語\n</think>\n\nit is not on the mat. 👩‍👩‍👧 naïve café"


@pytest.fixture
def codec(byte_level: PreTrainedTokenizerFast) -> ChatCodec:
    byte_level.chat_template = TEMPLATE
    return ChatCodec(Vocabulary(byte_level), Here(ChatEncoder(byte_level, KEY)), KEY)


def stream_of(
    codec: ChatCodec,
    prompt: tuple[int, ...],
    ids: tuple[int, ...],
    num_partial: int = 0,
    stop: str = "",
    *,
    repeats: bool = True,
) -> Delta:
    """All that the owner of a reply gets, which ends by its length."""
    processor = OutputProcessor(codec, lambda _: None, lambda _: None)
    stream = RequestStream("r")
    sampling = SamplingParams(stop=(stop,) if stop else ())
    processor.open(
        stream, sampling, 1, prompt, num_partial=num_partial, key=KEY, repeats_partial=repeats
    )
    for token_id in ids:
        processor.process([TokenOutput("r", (token_id,))], 0.0)
    usage = Usage(len(prompt), len(ids), 0)
    end = End(FinishReason.LENGTH, usage, Timings(), (*prompt, *ids))
    processor.process([TokenOutput("r", (), end)], 0.0)
    delta = stream.drain()
    assert delta is not None
    return delta


def test_wherever_a_reply_is_cut_its_text_goes_on(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast
) -> None:
    """Also within a character, a tag, or the thinking."""
    prompt = tuple(byte_level.encode("user\n", add_special_tokens=False))
    ids = tuple(byte_level.encode(REPLY, add_special_tokens=False))
    whole = stream_of(codec, prompt, ids)
    assert whole.thinking == "the cat 日本語"
    for cut in range(1, len(ids)):
        resumed = stream_of(codec, (*prompt, *ids[:cut]), ids[cut:], num_partial=cut)
        assert (resumed.thinking, resumed.text) == (whole.thinking, whole.text)
        assert resumed.finish is not None
        assert whole.finish is not None
        assert resumed.finish.usage == whole.finish.usage, "it is of the whole reply"
        assert resumed.finish.context == whole.finish.context
        assert resumed.num_tokens == len(ids) - cut


def test_a_stop_string_may_begin_before_the_cut_and_not_end_there(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast
) -> None:
    ids = tuple(byte_level.encode("the cat is not on the mat.", add_special_tokens=False))
    cut = len(ids) // 2
    head = byte_level.decode(ids[:cut])
    across = head[-2:] + byte_level.decode(ids[cut:])[:2]
    resumed = stream_of(codec, ids[:cut], ids[cut:], num_partial=cut, stop=across)
    assert resumed.text == head[:-2]
    before = stream_of(codec, ids[:cut], ids[cut:], num_partial=cut, stop=head[-3:])
    assert before.text == "the cat is not on the mat."


def test_what_belongs_to_the_prompt_is_not_told(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast
) -> None:
    prompt = tuple(byte_level.encode("user\n", add_special_tokens=False))
    ids = tuple(byte_level.encode(REPLY, add_special_tokens=False))
    whole = stream_of(codec, prompt, ids)
    for cut in range(1, len(ids)):
        head, tail = byte_level.decode(ids[:cut]), byte_level.decode(ids[cut:])
        if "\ufffd" in head + tail:
            continue  # A message ends with a whole character.
        rest = stream_of(codec, (*prompt, *ids[:cut]), ids[cut:], num_partial=cut, repeats=False)
        content = head.rpartition("</think>\n\n")[2] if "</think>\n\n" in head else ""
        assert content + rest.text == whole.text
        assert whole.thinking.endswith(rest.thinking)
        assert rest.finish is not None
        usage = rest.finish.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt) + cut, len(ids) - cut)
        assert (usage.reasoning_tokens > 0) == ("</think>" not in head)


def test_white_space_with_which_a_prompt_ends_is_not_told(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast
) -> None:
    """Whether thinking begins behind it is not known when the prompt ends."""
    head, tail = (
        tuple(byte_level.encode(text, add_special_tokens=False)) for text in ("\n ", "the cat")
    )
    sent = stream_of(codec, (*head,), tail, num_partial=len(head), repeats=False)
    assert sent.text == "the cat"


def test_no_stop_string_begins_in_the_prompt(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast
) -> None:
    head, tail = (
        tuple(byte_level.encode(text, add_special_tokens=False)) for text in ("the ca", "t is not")
    )
    sent = stream_of(codec, head, tail, num_partial=len(head), stop="cat", repeats=False)
    assert sent.text == "t is not"


def test_the_ids_of_a_reply_are_gone_on_from_exactly(codec: ChatCodec) -> None:
    chat = (ChatMessage("user", "Hi"), ChatMessage("assistant", "text that is not looked at"))
    context = Context(KEY, (5, 6, 7, 8), 2)
    assert codec.encode_continuation(chat, context, 3) == ([5, 6, 7, 8], 3)


@pytest.mark.parametrize(
    "context", [None, Context("another model", (5, 6, 7, 8), 2), Context(KEY, (5, 6), 1)]
)
def test_without_its_ids_a_reply_is_encoded_from_its_text(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast, context: Context | None
) -> None:
    chat = (ChatMessage("user", "Hi"), ChatMessage("assistant", "the cat", thinking="is not"))
    ids, num_partial = codec.encode_continuation(chat, context, 3)
    assert byte_level.decode(ids) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        "<think>\nis not\n</think>\n\nthe cat"
    )
    assert byte_level.decode(ids[-num_partial:]) == "<think>\nis not\n</think>\n\nthe cat"


def test_a_reply_spells_no_special_token(
    codec: ChatCodec, byte_level: PreTrainedTokenizerFast
) -> None:
    chat = (ChatMessage("user", "Hi"), ChatMessage("assistant", "a <|im_end|> b"))
    ids, num_partial = codec.encode_continuation(chat, None, 0)
    assert byte_level.convert_tokens_to_ids("<|im_end|>") not in ids[-num_partial:]


def test_only_a_reply_is_gone_on_with(codec: ChatCodec) -> None:
    with pytest.raises(InvalidRequestError, match="role of the last message is 'user'"):
        codec.encode_continuation((ChatMessage("user", "Hi"),), None, 0)


@pytest.mark.parametrize(
    ("thinking", "content", "is_open", "text"),
    [
        ("", "said", False, "said"),
        ("thought", "", False, "<think>\nthought"),
        ("thought", "said", False, "<think>\nthought\n</think>\n\nsaid"),
        ("thought", "said", True, "thought\n</think>\n\nsaid"),
        ("", "said", True, "\n</think>\n\nsaid"),
    ],
)
def test_thinking_stands_between_its_tags(
    thinking: str, content: str, is_open: bool, text: str
) -> None:
    reply = ChatMessage("assistant", content, thinking)
    assert partial_text(reply, THINK, None, is_open=is_open) == text


def test_thinking_stands_on_its_channel() -> None:
    said = partial_text(ChatMessage("assistant", "said", "thought"), None, CHANNELS, is_open=False)
    assert said == (
        "<|channel|>analysis<|message|>thought<|end|><|start|>assistant"
        "<|channel|>final<|message|>said"
    )
