from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import engine.builtin
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.stream import Context
from engine.text.detokenizer import Detokenizer
from engine.text.encoder import SENTINEL, ChatEncoder
from engine.text.vocabulary import Vocabulary
from tests.support.encoding import CHATML, KEY, encoder_of, ids_of, text_of

# As Qwen3: the reasoning of replies before the last question is dropped.
THINKING = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content }}",
)

HEADERS = """\
{{- bos_token -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content|trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}"""

# As Gemma: no system role, strict turns, trimmed content.
TURNS = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
{{- raise_exception('System role not supported') -}}
{%- endif -%}
{%- for m in messages -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('Conversation roles must alternate user/assistant') -}}
{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n' -}}
{{- m.content|trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""

# As Llama 2: a space before the end marker, a new sequence for each turn.
INST = """\
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- bos_token + '[INST] ' + m.content + ' [/INST]' -}}
{%- elif m.role == 'assistant' -%}{{- ' ' + m.content + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}"""

# As models that take images: a content is a list of parts, and of other things nothing is written.
PARTS = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- for part in m.content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

END_MARKERS = {
    CHATML: "<|im_end|>",
    THINKING: "<|im_end|>",
    HEADERS: "<|eot_id|>",
    TURNS: "<end_of_turn>",
}
NAMES = {CHATML: "chatml", THINKING: "thinking", HEADERS: "headers", TURNS: "turns"}


def chat(*contents: str, system: str | None = None) -> list[ChatMessage]:
    """Messages of user and assistant in turn."""
    head = [] if system is None else [ChatMessage("system", system)]
    roles = ("user", "assistant")
    return head + [ChatMessage(roles[i % 2], text) for i, text in enumerate(contents)]


def render(tokenizer: PreTrainedTokenizerFast, messages: list[ChatMessage]) -> str:
    text: str = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages],
        add_generation_prompt=True,
        tokenize=False,
    )
    return text


@pytest.mark.parametrize("template", END_MARKERS, ids=NAMES.get)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut"])
def test_each_turn_continues_the_ids_of_the_turn_before(
    byte_level: PreTrainedTokenizerFast, template: str, ended: bool
) -> None:
    encoder, tokenizer = encoder_of(byte_level, template)
    system = None if template is TURNS else "Be brief."
    contents = ["Hello, who are you?"]
    context: Context | None = None
    for reply in ("I am fine;\n\nthe cat 😀", "naïve 日本", ""):
        messages = chat(*contents, system=system)
        prompt = encoder.encode(messages, context)
        if context is not None:
            assert prompt[: len(context.token_ids)] == list(context.token_ids)
        assert text_of(tokenizer, prompt) == render(tokenizer, messages)
        # A reply at its length limit, aborted or cut at a stop string has no end marker.
        output = ids_of(tokenizer, reply + (END_MARKERS[template] if ended else ""))
        context = Context(KEY, (*prompt, *output), len(messages) + 1)
        contents += [reply, f"And then, after {reply}?"]


def test_a_template_of_parts_is_given_the_text_as_one(byte_level: PreTrainedTokenizerFast) -> None:
    encoder, tokenizer = encoder_of(byte_level, PARTS)
    messages = chat("Hello", "Hi there", "How are you?", system="Be brief.")
    same, _ = encoder_of(byte_level, CHATML)
    assert "Be brief." in text_of(tokenizer, encoder.encode(messages, None))
    assert encoder.encode(messages, None) == same.encode(messages, None)
    prompt = encoder.encode(messages[:2], None)
    context = Context(KEY, (*prompt, *ids_of(tokenizer, "Hi there<|im_end|>")), 3)
    assert encoder.encode(messages, context) == encoder.encode(messages, None)


def test_the_built_in_model_continues_its_chats() -> None:
    folder = Path(engine.builtin.__file__).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoder = ChatEncoder(tokenizer, KEY)
    messages = chat("What is a cat? 😀", system="Be brief.")
    prompt = encoder.encode(messages, None)
    assert text_of(tokenizer, prompt) == render(tokenizer, messages)
    output = [*ids_of(tokenizer, "A small 🜁 animal."), tokenizer.eos_token_id]
    assert "".join(map(Detokenizer(Vocabulary(tokenizer)).push, output)) == "A small 🜁 animal."
    messages += [ChatMessage("assistant", "A small 🜁 animal."), ChatMessage("user", "Why?")]
    second = encoder.encode(messages, Context(KEY, (*prompt, *output), 3))
    assert second[: len(prompt) + len(output)] == [*prompt, *output]
    assert text_of(tokenizer, second) == render(tokenizer, messages)


def test_the_first_turn_is_the_template_without_added_tokens(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, HEADERS)
    messages = chat("Hello", system="Be brief.")
    prompt = encoder.encode(messages, None)
    assert prompt == ids_of(tokenizer, render(tokenizer, messages))
    assert prompt.count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(
    ("template", "reply"),
    [
        (THINKING, "<think>\nthe cat\n</think>\n\nIt is outside."),
        (TURNS, "  It is outside.\n\n"),
        (HEADERS, "\n It is outside. "),
    ],
    ids=["reasoning", "trimmed", "trimmed-headers"],
)
def test_what_a_template_drops_from_old_replies_stays_in_the_ids(
    byte_level: PreTrainedTokenizerFast, template: str, reply: str
) -> None:
    encoder, tokenizer = encoder_of(byte_level, template)
    first = encoder.encode(chat("Hello"), None)
    output = ids_of(tokenizer, reply + END_MARKERS[template])
    messages = chat("Hello", reply, "Why?")
    second = encoder.encode(messages, Context(KEY, (*first, *output), 2))
    assert second[: len(first) + len(output)] == [*first, *output]
    shown = reply.split("</think>")[-1].strip()
    expected = render(tokenizer, messages).replace(shown, reply)
    assert text_of(tokenizer, second) == expected


@settings(max_examples=100, deadline=None)
@given(
    contents=st.lists(st.text(max_size=20), min_size=3, max_size=3),
    cut=st.integers(0, 40),
    data=st.data(),
)
def test_any_reply_cut_anywhere_is_continued(
    byte_level: PreTrainedTokenizerFast, contents: list[str], cut: int, data: st.DataObject
) -> None:
    question, reply, next_question = contents
    encoder, tokenizer = encoder_of(byte_level, CHATML)
    prompt = encoder.encode(chat(f"{question}?"), None)
    output = ids_of(tokenizer, reply)[:cut]
    messages = chat(f"{question}?", tokenizer.decode(output), f"{next_question}!")
    second = encoder.encode(messages, Context(KEY, (*prompt, *output), 2))
    head = [*prompt, *output]
    assert second[: len(head)] == head
    assert text_of(tokenizer, second[len(head) :]) == (
        f"<|im_end|>\n<|im_start|>user\n{next_question}!<|im_end|>\n<|im_start|>assistant\n"
    )


def test_space_before_the_end_marker_is_not_written_again(
    byte_fallback: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_fallback, INST)
    prompt = encoder.encode(chat("the cat"), None)
    output = [*ids_of(tokenizer, "the dog"), tokenizer.eos_token_id]
    second = encoder.encode(chat("the cat", "the dog", "why"), Context(KEY, (*prompt, *output), 2))
    rest = second[len(prompt) + len(output) :]
    assert rest == ids_of(tokenizer, "<s>[INST] why [/INST]")


def test_another_end_of_sequence_is_followed_by_the_end_marker(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, CHATML)
    prompt = encoder.encode(chat("Hi"), None)
    output = ids_of(tokenizer, "Hello</s>")
    second = encoder.encode(chat("Hi", "Hello", "Why?"), Context(KEY, (*prompt, *output), 2))
    assert text_of(tokenizer, second).startswith(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello</s><|im_end|>\n"
    )


def test_the_end_of_a_cut_reply_is_not_taken_for_an_end_marker(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, None)
    prompt = encoder.encode(chat("Hi"), None)
    output = ids_of(tokenizer, "user: Why?")[:1]  # the next line begins with the same token
    reply = tokenizer.decode(output)
    second = encoder.encode(chat("Hi", reply, "Why?"), Context(KEY, (*prompt, *output), 2))
    assert text_of(tokenizer, second) == f"user: Hi\nassistant:{reply}\nuser: Why?\nassistant:"


LOSES_REPLIES = CHATML.replace("{%- for m in messages -%}", "{%- for m in messages[-1:] -%}")
REPEATS_REPLIES = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.content }}")
REFUSES_SENTINEL = CHATML.replace(
    "{%- for m in messages -%}",
    "{%- for m in messages -%}"
    "{%- if 'here' in m.content -%}{{ raise_exception('no') }}{%- endif -%}",
)


@pytest.mark.parametrize(
    "template",
    [LOSES_REPLIES, REPEATS_REPLIES, REFUSES_SENTINEL],
    ids=["loses", "repeats", "refuses"],
)
def test_rendered_anew_where_the_reply_cannot_be_located(
    byte_level: PreTrainedTokenizerFast, template: str
) -> None:
    encoder, tokenizer = encoder_of(byte_level, template)
    messages = chat("Hi", "Hello", "Why?")
    token_ids = encoder.encode(messages, Context(KEY, (1, 2, 3), 2))
    assert token_ids == ids_of(tokenizer, render(tokenizer, messages))


def test_rendered_anew_where_the_chat_contains_the_sentinel(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, CHATML)
    messages = chat("Hi", "Hello", f"What is {SENTINEL}?")
    token_ids = encoder.encode(messages, Context(KEY, (1, 2, 3), 2))
    assert token_ids == ids_of(tokenizer, render(tokenizer, messages))


@pytest.mark.parametrize(
    "context",
    [
        Context("another model", (50, 51), 2),
        Context(KEY, (50, 51), 1),  # ends with a question
        Context(KEY, (50, 51), 3),  # leaves nothing to ask
        Context(KEY, (50, 51), 4),
        Context(KEY, (50, 51), 0),
        Context(KEY, (), 2),
    ],
)
def test_a_context_that_does_not_fit_is_set_aside(
    byte_level: PreTrainedTokenizerFast, context: Context
) -> None:
    encoder, _ = encoder_of(byte_level, CHATML)
    messages = chat("Hi", "Hello", "Why?")
    assert encoder.encode(messages, context) == encoder.encode(messages, None)


def test_refused_system_text_goes_before_the_first_question(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, TURNS)
    prompt = encoder.encode(chat("Hello", system="Be brief."), None)
    assert text_of(tokenizer, prompt) == render(tokenizer, chat("Be brief.\n\nHello"))
    # The next turn still counts the system message.
    context = Context(KEY, (*prompt, *ids_of(tokenizer, "Hi<end_of_turn>")), 3)
    second = encoder.encode(chat("Hello", "Hi", "Why?", system="Be brief."), context)
    assert second[: len(context.token_ids)] == list(context.token_ids)
    assert text_of(tokenizer, second) == render(tokenizer, chat("Be brief.\n\nHello", "Hi", "Why?"))


def test_the_templates_own_refusal_is_told(byte_level: PreTrainedTokenizerFast) -> None:
    encoder, _ = encoder_of(byte_level, TURNS)
    messages = [ChatMessage("user", "one"), ChatMessage("user", "two")]
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        encoder.encode(messages, None)
    assert caught.value.param == "messages"
    broken, _ = encoder_of(byte_level, "{{ messages[0].content + 1 }}")
    with pytest.raises(InvalidRequestError, match="refused by the model's chat template"):
        broken.encode(chat("Hi"), None)


def test_without_a_template_a_chat_is_lines_of_role_and_text(
    byte_fallback: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_fallback, None)
    messages = chat("the cat", "the dog", "the mat", system="line by line")
    first = encoder.encode(messages[:2], None)
    assert text_of(tokenizer, first) == "system: line by line\nuser: the cat\nassistant:"
    context = Context(KEY, (*first, *ids_of(tokenizer, "the dog")), 3)
    second = encoder.encode(messages, context)
    assert second[: len(context.token_ids)] == list(context.token_ids)
    assert text_of(tokenizer, second) == (
        "system: line by line\nuser: the cat\nassistant: the dog\nuser: the mat\nassistant:"
    )


def test_without_a_template_a_reply_that_was_cut_off_stands_behind_a_blank(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, None)
    for content in ("the cat", " the cat"):
        begun = encoder.encode_partial(ChatMessage("assistant", content), is_open=False)
        assert text_of(tokenizer, begun) == " the cat"


def test_tools_are_refused_without_a_template(byte_level: PreTrainedTokenizerFast) -> None:
    encoder, _ = encoder_of(byte_level, None)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(InvalidRequestError, match="the model's tokenizer has no chat template"):
        encoder.encode(chat("Hi"), None, {"tools": [tool]})


def test_a_blank_template_is_none(byte_level: PreTrainedTokenizerFast) -> None:
    encoder, tokenizer = encoder_of(byte_level, " ")
    assert text_of(tokenizer, encoder.encode(chat("Hi"), None)).endswith("user: Hi\nassistant:")


def test_without_a_template_the_tokenizer_begins_the_sequence_and_does_not_end_it(
    byte_level: PreTrainedTokenizerFast,
) -> None:
    encoder, tokenizer = encoder_of(byte_level, None)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    assert text_of(tokenizer, encoder.encode(chat("Hi"), None)) == "<s>user: Hi\nassistant:"


@pytest.mark.parametrize(
    ("messages", "sentence", "param"),
    [
        ([], "messages is empty", "messages"),
        (
            [ChatMessage("function", "x")],
            r"messages\[0\].role is 'function'; it must be one of system, user, assistant, tool",
            "messages",
        ),
        (
            [ChatMessage("user", None)],  # type: ignore[arg-type]
            r"messages\[0\].content is of type NoneType; it must be text",
            "messages",
        ),
        (
            chat("Hi", "Hello", "ab\ud83d"),
            r"messages\[2\].content has the surrogate U\+D83D at character 2",
            "messages",
        ),
        (chat("Hi", "Hello"), r"messages\[1\].role is 'assistant'; the last", "messages"),
        (
            [*chat("Hi", "Hello"), ChatMessage("system", "x")],
            r"messages\[1\].role is 'assistant'; the last",
            "messages",
        ),
        ([ChatMessage("system", "x")], r"messages\[0\].role is 'system'; the last", "messages"),
        ([ChatMessage("user", ""), ChatMessage("system", "x")], "prompt is empty", "prompt"),
        (chat(""), "prompt is empty", "prompt"),
        (chat("Hi", "Hello", " \n\t"), "prompt is empty", "prompt"),
    ],
)
@pytest.mark.parametrize("template", [CHATML, None], ids=["template", "plain"])
def test_bad_chats_are_refused_with_a_sentence(
    byte_level: PreTrainedTokenizerFast,
    template: str | None,
    messages: list[ChatMessage],
    sentence: str,
    param: str,
) -> None:
    encoder, _ = encoder_of(byte_level, template)
    with pytest.raises(InvalidRequestError, match=sentence) as caught:
        encoder.encode(messages, None)
    assert caught.value.param == param


def test_text_loads_without_torch_and_transformers() -> None:
    code = (
        "import sys, engine.text.encoder, engine.text.processor; "
        "print([m for m in ('torch', 'transformers', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# As GLM: nothing ends a reply, and the next turn begins with a token.
OPENERS = "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor -%}"
# As gpt-oss: the last reply ends with another token than those before it.
LAST = """\
{%- for m in messages -%}
{{- m.content + ('<|eot_id|>' if loop.last else '<|im_end|>') -}}
{%- endfor -%}"""


@pytest.mark.parametrize(
    ("template", "marker"),
    [
        *END_MARKERS.items(),
        (INST, "</s>"),
        (PARTS, "<|im_end|>"),
        (OPENERS, "<|im_start|>"),
        (LAST, "<|eot_id|>"),
        (None, None),
        ("{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}", None),
        ("{% for m in messages %}{{ m.content + m.content + '<|im_end|>' }}{% endfor %}", None),
        ("{{ raise_exception('never') }}", None),
    ],
)
def test_the_template_tells_which_token_ends_a_reply(
    byte_level: PreTrainedTokenizerFast, template: str | None, marker: str | None
) -> None:
    encoder, tokenizer = encoder_of(byte_level, template)
    expected = [] if marker is None else [tokenizer.convert_tokens_to_ids(marker)]
    assert encoder.turn_ends() == expected
