"""ChatEncoder: encodes a chat to the token ids of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import product, takewhile
from typing import Any

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.stream import Context
from engine.api.structure import Structure
from engine.api.tools import ToolCall, ToolUse
from engine.structure.compiler import Compiler
from engine.structure.lead import Lead
from engine.structure.rules import write
from engine.structure.words import Words
from engine.text.arguments import NO_ARGUMENTS, context_key, map_texts
from engine.text.calls import Calling, read_calls
from engine.text.channels import Channels
from engine.text.copied import pickle_tokenizer
from engine.text.forms import ARGUMENTS, NAMES, Form, form_of, known_form
from engine.text.guard import ContentGuard
from engine.text.messages import (
    CallShape,
    Ids,
    changed,
    check,
    fold_system,
    in_lines,
    in_template_form,
    reply,
    with_ids,
)
from engine.text.openings import Openings, distinct, openings, states_calls
from engine.text.table import TokenTable
from engine.text.thinking import FIELDS, Tags
from engine.text.vocabulary import Tokenizer, Vocabulary

# Letters only, because templates trim white space and cut at tags.
SENTINEL = "thereplystandshere"
THOUGHT = "thethinkingstandshere"
TOOL = "thetoolstandshere"
_PROBE = {"name": TOOL, "description": TOOL, "parameters": {"type": "object", "properties": {}}}

# Calls of these, with their results, probe a template.
_TRIED: list[dict[str, Any]] = [
    {"type": "function", "function": {**_PROBE, "name": name}} for name in NAMES
]
_HEADERS = ("<|channel|>commentary to=functions.", "to=functions.")

_READS_FIELD = re.compile(rf"[.'\"]({'|'.join(FIELDS)})\b")


class ChatEncoder:
    """Encodes chats for one model.

    The token ids of a conversation are only ever appended to. The prompt of a later turn is exactly
    the ids so far, plus what the template writes after the last reply. So it hits the prefix cache
    even if the template changes old replies (trims them, say), or if decoding and re-encoding them
    would produce other ids. Thinking is the exception: if the template does not repeat that of the
    last reply, the chat is rendered anew, and only its beginning is cached.

    It is not thread-safe (see `Tokenizer`). It runs code that comes with a model: a chat template
    and a tokenizer. These may fail in any way or never return, so `engine.text.pool` runs it in
    separate processes.

    Args:
        tokenizer: a tokenizer of transformers.
        model_key: the model's `LoadedModel.key`; contexts of other models are not used.
        begins_thinking: see `ModelEntry.begins_thinking`.
    """

    def __init__(
        self, tokenizer: Tokenizer, model_key: str, *, begins_thinking: bool = False
    ) -> None:
        self.model_key = model_key
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._tags = Tags.find(self._vocabulary, begins_thinking=begins_thinking)
        self._channels = Channels.find(self._vocabulary)
        self._reads_field = _READS_FIELD.search(self._vocabulary.template) is not None
        # Templates of models that take images may omit content that is not a list of parts.
        self._in_parts = not self._shows_content(in_parts=False) and self._shows_content(
            in_parts=True
        )
        self._guard = ContentGuard(tokenizer, self._vocabulary, self._find_turns())
        self._anchor = self._find_anchor()
        self._compiler: Compiler | None = None

    def encode(
        self,
        messages: Sequence[ChatMessage],
        context: Context | None,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        """Encode the prompt that asks for the next reply of a chat.

        The model's chat template renders the chat. Without a template, the text is a line `role:
        content` for each message, then `assistant:`. If the template refuses the chat, it is
        rendered again with the text of system messages before that of the first user message. Text
        that spells a special token is not encoded as that token (`ContentGuard` lists the tokens
        that it guards).

        Args:
            messages: the whole chat; the last message is the user's, or a tool's result.
            context: ids of the leading messages, the last of which is a reply. It is not used if it
                belongs to another model or other arguments, if the reply has thinking that the
                template does not repeat, or if the template's text after the reply is unknown or
                depends on the tools that the reply calls.
            arguments: arguments of the chat template, by name. Their text is guarded like messages.

        Raises:
            InvalidRequestError: an empty chat or prompt, an unknown role, content that is not valid
                text, tools that the template does not write, or a chat that it refuses or turns
                into a forged special token.
        """
        if context is not None:
            tail = self.encode_after(messages, context, arguments)
            if tail is not None:
                return [*context.token_ids, *tail]
        check(messages)
        self._check_tools(arguments)
        safe = self._guarded(arguments)
        return self._guard.encode(messages, partial(self._encode_whole, arguments=safe))

    def encode_after(
        self,
        messages: Sequence[ChatMessage],
        context: Context,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int] | None:
        """The ids that `encode` appends to those of the context; None if it does not use the
        context.

        Only the last of the context's ids is read.

        Raises:
            InvalidRequestError: as `encode`.
        """
        check(messages)
        if context.model_key != context_key(self.model_key, arguments) or not context.token_ids:
            return None
        self._check_tools(arguments)
        safe = self._guarded(arguments)
        encode = partial(self._encode_tail, context=context, arguments=safe)
        return self._guard.encode(messages, encode)

    def common_prefix(
        self, messages: Sequence[ChatMessage], arguments: Mapping[str, object] = NO_ARGUMENTS
    ) -> list[int]:
        """The token ids shared by all chats that start with `messages`.

        They are found by encoding two chats that continue differently. Encoding `messages` alone
        would not do: a template may fold a system message into the user's, and a tokenizer may join
        text across the end of one message and the start of the next.

        Raises:
            InvalidRequestError: as `encode`.
        """
        one, other = (
            self.encode([*messages, ChatMessage("user", text)], None, arguments)
            for text in ("a", "1")
        )
        same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        return [token for token, _ in same]

    def encode_text(self, text: str, *, is_whole: bool) -> list[int]:
        """Encode a text without a template. It may spell special tokens.

        Args:
            is_whole: whether it is a prompt, which gets the tokenizer's tokens for the start of a
                sequence.
        """
        own = self._tokenizer.encode(text, add_special_tokens=False)
        if not is_whole:
            return own
        marked = self._tokenizer.encode(text, add_special_tokens=True)
        for start in range(len(marked) - len(own) + 1):
            if marked[start : start + len(own)] == own:
                return marked[: start + len(own)]  # The tokens that end a sequence are left out.
        return marked

    def encode_partial(self, reply: ChatMessage, *, is_open: bool) -> list[int]:
        """Encode a partial reply as it stands after its prompt.

        Args:
            is_open: see `partial_text`.
        """
        safe = changed(reply, self._guard.harmless)
        text = partial_text(safe, self._tags, self._channels, is_open=is_open)
        if not self._vocabulary.has_template:
            text = f" {text.lstrip()}"  # as models write it after `assistant:`
        token_ids = self._tokenizer.encode(self._anchor + text, add_special_tokens=False)
        return token_ids[1:] if self._anchor else token_ids

    def read_calls(
        self,
        prompt: Sequence[int],
        reply: Sequence[int],
        tools: Sequence[Mapping[str, object]],
        *,
        is_open: bool,
    ) -> ToolUse | None:
        """See `engine.text.calls.read_calls`."""
        return read_calls(self._tokenizer, prompt, reply, tools, self._calling, is_open=is_open)

    def openings(self) -> Openings:
        """The openings of this model's tool calls."""
        if self._calling.is_stated:
            return Openings(openings(self._vocabulary.response_template) or None)
        if self._calling.has_channels:
            return Openings(_HEADERS)
        form, why = self._calling.form, self._tried_calls[2] if self._writes_tools else ""
        if form is None or not form.starts:
            return Openings((), "" if form is not None else why)
        return Openings(distinct(form.openings()) or None)

    def turn_ends(self) -> list[int]:
        """The token with which the chat template ends a reply; empty if there is no such token.

        It follows the last reply. A template without a token there may begin the next turn with
        one, which then ends the reply, because the model was trained to write it.
        """
        question, answer = ChatMessage("user", SENTINEL), reply(SENTINEL)
        if not self._vocabulary.has_template:
            return []
        for chat in ([question, answer], [question, answer, question]):
            try:
                parts = self._render(chat, asks=False).split(SENTINEL)
            except InvalidRequestError:
                continue
            if len(parts) != len(chat) + 1:
                continue
            behind = parts[2].lstrip()
            found = [
                (len(text), token_id)
                for token_id, text in self._vocabulary.added.items()
                if text.strip() and behind.startswith(text)
            ]
            if found:
                return [max(found)[1]]
        return []

    def table(self) -> TokenTable | None:
        """The tokens, for decoding; None if only the tokenizer's own code decodes."""
        return TokenTable.of(self._tokenizer)

    def pickled(self) -> bytes:
        """The tokenizer, pickled for `CopiedTokenizer`."""
        return pickle_tokenizer(self._tokenizer)

    def words(self) -> list[bytes]:
        """The bytes of each token, by id."""
        return [self._vocabulary.utf8(token_id) for token_id in range(self._vocabulary.size)]

    def try_structure(
        self, structure: Structure, lead: Lead, ends: Sequence[int], size: int
    ) -> str:
        """Compile a structure after a lead, and discard the result.

        Args:
            ends, size: see `Words.of`; the same at every call.

        Returns:
            the rules that were compiled.

        Raises:
            InvalidRequestError: it cannot be compiled.
        """
        rules = write(structure, lead)
        if self._compiler is None:
            words = Words.of(self.words(), self._vocabulary.special.keys(), ends, size)
            self._compiler = Compiler(words)
        self._compiler.compile(rules, structure.kind)
        return rules

    @cached_property
    def _writes_tools(self) -> bool:
        """Whether the template writes the functions that it gets. If it refuses the question, which
        shows nothing, it gets them.
        """
        if not self._vocabulary.has_template:
            return False
        question, tools = ChatMessage("user", SENTINEL), [{"type": "function", "function": _PROBE}]
        try:
            return TOOL in self._render([question], {"tools": tools})
        except InvalidRequestError:
            return True

    def _check_tools(self, arguments: Mapping[str, object]) -> None:
        if arguments.get("tools") and not self._writes_tools:
            lacks = (
                "chat template takes none"
                if self._vocabulary.has_template
                else ("tokenizer has no chat template")
            )
            raise InvalidRequestError(
                f"tools are stated, and the model's {lacks}; ask without them, or ask another "
                "model",
                "tools",
            )

    def _guarded(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Replace texts in arguments that spell a token which only the template may write."""
        return {k: map_texts(value, self._guard.harmless) for k, value in arguments.items()}

    @cached_property
    def _calling(self) -> Calling:
        is_stated = states_calls(self._vocabulary.response_template)
        return Calling(
            is_stated,
            None if is_stated or self._channels is not None else self._tried_calls[1],
            self._tags,
            self._channels is not None,
            tuple(self._vocabulary.special.values()),
        )

    @cached_property
    def _tried_calls(self) -> tuple[CallShape, Form | None, str]:
        """The shape in which the template accepts messages with calls, the format in which it
        writes them, and the reason if that is unknown.
        """
        refusal, written = "", None
        if self._tokenizer.chat_template is None:
            return CallShape(), None, ""
        for shape in (CallShape(*one) for one in product(Ids, (False, True))):
            for number in (2, 1):  # Some refuse several calls at once.
                try:
                    form, writes = self._try_calls(shape, number)
                except InvalidRequestError as error:
                    refusal = refusal or error.message
                    continue
                refusal = "the chat template writes none that can be read"
                if form is not None:
                    return self._tried_beside(shape), form, ""
                if writes and written is None:
                    written = shape
        known = known_form("\n".join((self._vocabulary.template, *self._vocabulary.added.values())))
        if written is None:
            return CallShape(writes=known is None), known, refusal
        return self._tried_beside(written), known, refusal

    def _tried_beside(self, shape: CallShape) -> CallShape:
        """The shape, with whether the template writes a call beside content."""
        question = ChatMessage("user", SENTINEL)
        call = ToolCall(NAMES[0], json.dumps(ARGUMENTS[0]), "call_0")
        asking = ChatMessage("assistant", SENTINEL, tool_calls=(call,))
        gave = ChatMessage("tool", SENTINEL, tool_call_id="call_0", name=NAMES[1])
        messages = with_ids([question, asking, gave], shape.ids)
        try:
            text = self._apply(messages, {"tools": _TRIED[:1]}, shape)
        except InvalidRequestError:
            return shape._replace(writes_beside=False)
        behind = text.partition(SENTINEL)[2]  # The tools stand before the question.
        return shape._replace(writes_beside=NAMES[0] in behind)

    def _try_calls(self, shape: CallShape, number: int) -> tuple[Form | None, bool]:
        """Find the form of this many calls, and whether the template writes them at all.

        Raises:
            InvalidRequestError: the template refuses them.
        """
        question = ChatMessage("user", SENTINEL)
        calls = tuple(
            ToolCall(name, json.dumps(given), f"call_{place}")
            for place, (name, given) in enumerate(zip(NAMES[:number], ARGUMENTS, strict=False))
        )
        asking = ChatMessage("assistant", "", tool_calls=calls)
        gave = [
            ChatMessage("tool", SENTINEL, tool_call_id=call.id or "", name=call.name)
            for call in calls
        ]
        messages = with_ids([question, asking, *gave], shape.ids)
        arguments = {"tools": _TRIED}
        text = self._apply(messages, arguments, shape).partition(SENTINEL)[2].partition(SENTINEL)[0]
        try:
            plain = self._apply([question, reply(SENTINEL), question], arguments, shape)
        except InvalidRequestError:
            plain = self._apply([question], arguments, shape)
        frame = plain.split(SENTINEL)[1] if SENTINEL in plain else ""
        if self._tags is not None:
            # The text after the thinking is the beginning of a reply that calls.
            end = text.rfind(self._tags.close, 0, max(0, text.find(NAMES[0])))
            if end >= 0:
                text = text[end + len(self._tags.close) :]
                frame = frame.rpartition(self._tags.close)[2] if self._tags.close in frame else ""
        ids = [call.id or "" for call in messages[1].tool_calls]
        return form_of(text, frame, ids), all(call.name in text for call in calls)

    def _render(
        self,
        messages: Sequence[ChatMessage],
        arguments: Mapping[str, object] = NO_ARGUMENTS,
        *,
        asks: bool = True,
    ) -> str:
        """Render a chat, with the beginning of the next reply if `asks`."""
        if not self._vocabulary.has_template:
            return in_lines(messages)
        shape, chats = CallShape(), [messages]
        if any(message.tool_calls for message in messages):
            shape, form, _ = self._tried_calls
            if form is not None and not shape.writes:
                chats = [[_said(message, form) for message in messages]]
            elif not shape.writes_beside:
                parts = [_apart(message) for message in messages]
                # A template may refuse two replies in a row; then the call is kept.
                chats = [[one for part in parts for one in part], [part[-1] for part in parts]]
            # A template that takes any id may or may not accept calls without one.
            named = [with_ids(chat, shape.ids) for chat in chats]
            if shape.ids is Ids.ANY:
                named = [one for pair in zip(chats, named, strict=True) for one in pair]
            chats = named
        for chat in chats:
            with suppress(InvalidRequestError):
                return self._apply(chat, arguments, shape, asks=asks)
        return self._apply(fold_system(chats[-1]), arguments, shape, asks=asks)

    def _apply(
        self,
        messages: Sequence[ChatMessage],
        arguments: Mapping[str, object],
        shape: CallShape,
        *,
        asks: bool = True,
    ) -> str:
        """Render a chat by the template.

        Raises:
            InvalidRequestError: the template refuses it.
        """
        parts = self._in_parts
        try:
            text: str = self._tokenizer.apply_chat_template(
                [in_template_form(one, in_parts=parts, shape=shape) for one in messages],
                add_generation_prompt=asks,
                tokenize=False,
                **arguments,
            )
        except MemoryError:
            raise  # The memory limit ended it; the template refuses nothing.
        except Exception as error:  # the model's own code: it may raise anything
            raise InvalidRequestError(
                f"messages are refused by the model's chat template: {error}", "messages"
            ) from error
        return text

    def _shows_content(self, in_parts: bool) -> bool:
        """Whether the template writes a message's content, as text or as a list of parts.

        If a template refuses the message, which shows nothing, it gets text.
        """
        self._in_parts = in_parts
        try:
            return SENTINEL in self._render([ChatMessage("user", SENTINEL)])
        except InvalidRequestError:
            return not in_parts

    def _render_tail(
        self,
        messages: Sequence[ChatMessage],
        num_covered: int,
        arguments: Mapping[str, object],
    ) -> str | None:
        """The template's text after the reply that ends the covered messages; None if it is
        unknown, if the reply has thinking that the template does not repeat, or if the reply calls
        tools and the text after it would then differ.
        """
        if not 0 < num_covered < len(messages) or messages[num_covered - 1].role != "assistant":
            return None
        covered = messages[num_covered - 1]
        thinks = bool(covered.thinking)
        marked = list(messages)
        marked[num_covered - 1] = self._marked_reply() if thinks else reply(SENTINEL)
        try:
            text = self._render(marked, arguments)
            whole = self._render(messages, arguments) if covered.tool_calls else text
            is_shown = self._shows_outcomes(marked, num_covered, arguments)
        except InvalidRequestError:
            return None
        if text.count(SENTINEL) != 1 or (thinks and THOUGHT not in text) or not is_shown:
            return None
        tail = text.partition(SENTINEL)[2]
        return tail if whole.endswith(tail) else None

    def _shows_outcomes(
        self,
        marked: Sequence[ChatMessage],
        num_covered: int,
        arguments: Mapping[str, object],
    ) -> bool:
        """Whether the template writes all tool results, and writes them all after the marked reply.
        Some templates write results only beside their calls.
        """
        outcomes = [message.role == "tool" for message in marked[num_covered:]]
        if not any(outcomes):
            return True
        rest = (
            replace(message, content=SENTINEL) if is_outcome else message
            for message, is_outcome in zip(marked[num_covered:], outcomes, strict=True)
        )
        text = self._render([*marked[:num_covered], *rest], arguments)
        return text.count(SENTINEL) == 1 + sum(outcomes)

    def _marked_reply(self) -> ChatMessage:
        """A reply with thinking, where the template may repeat it: in a field, or within the
        content if it does not read such a field.
        """
        if self._reads_field or self._tags is None:
            return ChatMessage("assistant", SENTINEL, THOUGHT)
        return reply(f"{self._tags.open}\n{THOUGHT}\n{self._tags.close}\n\n{SENTINEL}")

    def _encode_whole(
        self, messages: Sequence[ChatMessage], arguments: Mapping[str, object]
    ) -> list[int]:
        text = self._render(messages, arguments)
        if self._vocabulary.has_template:
            return self._tokenizer.encode(text, add_special_tokens=False)
        # Without a template to write the token that begins a sequence, the tokenizer adds it, if it
        # has one.
        token_ids = self._tokenizer.encode(text, add_special_tokens=True)
        while token_ids and token_ids[-1] in self._vocabulary.special:
            token_ids.pop()  # It ends a sequence, but the reply follows.
        return token_ids

    def _encode_tail(
        self,
        messages: Sequence[ChatMessage],
        context: Context,
        arguments: Mapping[str, object],
    ) -> list[int] | None:
        """The ids after those of the context, or None as `_render_tail`."""
        tail = self._render_tail(messages, context.num_messages, arguments)
        if tail is None:
            return None
        last_id = context.token_ids[-1]
        if last_id in self._vocabulary.special:
            token_ids = self._tokenizer.encode(tail.lstrip(), add_special_tokens=False)
            if token_ids[:1] == [last_id]:  # the reply ended with its end marker
                return token_ids[1:]
        token_ids = self._tokenizer.encode(self._anchor + tail, add_special_tokens=False)
        return token_ids[1:] if self._anchor else token_ids

    def _find_turns(self) -> str:
        """The text that the chat template writes before messages other than replies and after tool
        messages, as far as it can be found. Text before replies is left out, because the template
        may write more there than the mark of a turn, such as the beginning of the reasoning.
        """
        if not self._vocabulary.has_template:
            return ""
        found = ""
        for roles, places in (
            (("system", "user", "assistant", "user"), (0, 1, 3)),
            (("user", "assistant", "tool", "user"), (2, 3)),
        ):
            try:
                text = self._render([ChatMessage(role, SENTINEL) for role in roles])
            except InvalidRequestError:
                continue
            parts = text.split(SENTINEL)
            if len(parts) == len(roles) + 1:
                found += "".join(parts[place] for place in places)
        return found

    def _find_anchor(self) -> str:
        """A special token with which a tail is encoded; "" if there is none.

        A metaspace tokenizer adds a space at the beginning of a text, which a tail must not get.
        """
        for token_id, token in self._vocabulary.special.items():
            token_ids = self._tokenizer.encode(token + "\n", add_special_tokens=False)
            # A token that swallows the white space after it is unsuitable.
            if len(token_ids) > 1 and token_ids[0] == token_id:
                return token
        return ""


def _apart(message: ChatMessage) -> list[ChatMessage]:
    """Split a message with both content and calls into two messages."""
    if not message.content or not message.tool_calls:
        return [message]
    return [replace(message, tool_calls=()), replace(message, content="", thinking="")]


def _said(message: ChatMessage, form: Form) -> ChatMessage:
    """Move a message's calls into its content."""
    if not message.tool_calls:
        return message
    said = f"{message.content}{form.write(message.tool_calls)}"
    return replace(message, content=said, tool_calls=())


def partial_text(
    reply: ChatMessage, tags: Tags | None, channels: Channels | None, *, is_open: bool
) -> str:
    """The text of a partial reply behind the prompt: thinking and content, with the markup that
    models write around them.

    A message no longer has the white space around the markup, so the usual white space is written.

    Args:
        is_open: whether the prompt ends with the tag that opens the thinking.
    """
    thinking, content = reply.thinking, reply.content
    if channels is not None:
        texts = {"analysis": thinking, "final": content}
        said = [f"<|channel|>{name}<|message|>{text}" for name, text in texts.items() if text]
        return "<|end|><|start|>assistant".join(said)
    if tags is None or not (thinking or is_open):
        return content
    text = thinking if is_open else f"{tags.open}\n{thinking}"
    return f"{text}\n{tags.close}\n\n{content}" if content else text
