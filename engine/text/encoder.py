"""ChatEncoder: makes the token ids of a prompt from a chat."""

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
from engine.text.begun import begun_text
from engine.text.calls import Calling, read_calls
from engine.text.channels import Channels
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
from engine.text.thinking import FIELDS, Tags
from engine.text.vocabulary import Tokenizer, Vocabulary

# It has letters only, because templates trim white space and cut at tags.
SENTINEL = "thereplystandshere"
THOUGHT = "thethinkingstandshere"
TOOL = "thetoolstandshere"
_PROBE = {"name": TOOL, "description": TOOL, "parameters": {"type": "object", "properties": {}}}

# Calls of these, and what they gave, are what a template is tried with.
_TRIED: list[dict[str, Any]] = [
    {"type": "function", "function": {**_PROBE, "name": name}} for name in NAMES
]
_HEADERS = ("<|channel|>commentary to=functions.", "to=functions.")

_READS_FIELD = re.compile(rf"[.'\"]({'|'.join(FIELDS)})\b")


class ChatEncoder:
    """Encodes chats for one model.

    The token ids of a conversation are only ever appended to. The prompt of a later turn is exactly
    the ids so far, and then what the template puts behind the last reply. So it hits the prefix
    cache even if the template changes old replies (trims them, say), or if decoding them and
    encoding them again would give other ids. Thinking is the exception: where the template repeats
    none of the last reply's, the chat is rendered anew, and only its beginning is cached.

    It is not thread-safe (see `Tokenizer`). It runs what comes with a model, a chat template and a
    tokenizer. These may fail in any way or never return, so `engine.text.pool` keeps it in
    processes of their own.

    Args:
        tokenizer: a tokenizer of transformers.
        model_key: the model's `LoadedModel.key`; contexts of other models are set aside.
    """

    def __init__(self, tokenizer: Tokenizer, model_key: str) -> None:
        self.model_key = model_key
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)
        self._tags = Tags.find(self._vocabulary)
        self._channels = Channels.find(self._vocabulary)
        self._reads_field = _READS_FIELD.search(self._vocabulary.template) is not None
        # Templates of models that take images may leave out a content that is no list of parts.
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
        """Token ids of the prompt that asks for the next reply of a chat.

        The model's chat template renders the chat. Without a template, the text is a line `role:
        content` for each message, then `assistant:`. If the template refuses the chat, it is
        rendered again with the text of system messages before that of the first user message. Text
        that spells a special token does not become that token (`ContentGuard` says which tokens it
        guards).

        Args:
            messages: the whole chat; the last message is the user's, or what a tool gave.
            context: ids of the leading messages, the last of which is a reply. It is set aside if
                it is of another model or of other arguments, if the reply has thinking that the
                template does not repeat, or if what the template puts behind the reply cannot be
                told, or depends on the tools that the reply calls.
            arguments: of the chat template, by name. Text in them is guarded as messages are.

        Raises:
            InvalidRequestError: an empty chat or prompt, an unknown role, content that is no valid
                text, tools that the template does not write, or a chat that it refuses or would
                forge a special token from.
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
        """The ids that `encode` puts behind those of the context; None if it sets them aside.

        Only the last one of the context's ids is looked at.

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
        """The token ids with which every chat begins that begins with `messages`.

        They are found by encoding two chats that go on differently. Encoding `messages` alone would
        not do: a template may fold a system message into the user's, and a tokenizer may join what
        meets where one message ends and the next begins.

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
        """The token ids of a text, which no template is put around. It may spell special tokens.

        Args:
            is_whole: whether it is a prompt, which the tokenizer begins as it begins sequences.
        """
        own = self._tokenizer.encode(text, add_special_tokens=False)
        if not is_whole:
            return own
        marked = self._tokenizer.encode(text, add_special_tokens=True)
        for start in range(len(marked) - len(own) + 1):
            if marked[start : start + len(own)] == own:
                return marked[: start + len(own)]  # What ends a sequence is still to come.
        return marked

    def encode_begun(self, reply: ChatMessage, *, is_open: bool) -> list[int]:
        """The token ids of a reply that was cut off, as they stand behind those of its prompt.

        Args:
            is_open: as `begun_text` has it.
        """
        safe = changed(reply, self._guard.harmless)
        text = begun_text(safe, self._tags, self._channels, is_open=is_open)
        if not self._vocabulary.has_template:
            text = f" {text.lstrip()}"  # as models write it behind `assistant:`
        token_ids = self._tokenizer.encode(self._anchor + text, add_special_tokens=False)
        return token_ids[1:] if self._anchor else token_ids

    def read_calls(
        self,
        prompt: Sequence[int],
        reply: Sequence[int],
        tools: Sequence[Mapping[str, object]],
    ) -> ToolUse | None:
        """As `engine.text.calls.read_calls`."""
        return read_calls(self._tokenizer, prompt, reply, tools, self._calling)

    def openings(self) -> Openings:
        """How the tool calls of this model begin."""
        if self._calling.is_stated:
            return Openings(openings(self._vocabulary.response_template) or None)
        if self._calling.has_channels:
            return Openings(_HEADERS)
        form, why = self._calling.form, self._tried_calls[2] if self._writes_tools else ""
        if form is None or not form.starts:
            return Openings((), "" if form is not None else why)
        return Openings(distinct(form.openings()) or None)

    def turn_ends(self) -> list[int]:
        """The token with which the chat template ends a reply; none if it ends it with no token.

        It is what stands behind a last reply. A template that writes no token there may begin the
        next turn with one, which then ends the reply, since the model was trained to write it.
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

    def words(self) -> list[bytes]:
        """The bytes that each token stands for, by id."""
        return [self._vocabulary.utf8(token_id) for token_id in range(self._vocabulary.size)]

    def try_structure(
        self, structure: Structure, lead: Lead, ends: Sequence[int], size: int
    ) -> str:
        """Compile a structure behind a lead, and give it up again.

        Args:
            ends, size: as `Words.of` takes them; the same at every call.

        Returns:
            what was compiled.

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
        """Whether the template writes the functions that it is given. One that refuses the question
        tells nothing, and is given them.
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
        """Arguments none of whose texts spells a token that only the template may write."""
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
        """How the template is given messages with calls, how it writes these, and why nobody knows
        that if so.
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
                    return shape, form, ""
                if writes and written is None:
                    written = shape
        known = known_form("\n".join((self._vocabulary.template, *self._vocabulary.added.values())))
        return written or CallShape(writes=known is None), known, refusal

    def _try_calls(self, shape: CallShape, number: int) -> tuple[Form | None, bool]:
        """The form of so many calls, if it is found, and whether they are written at all.

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
            # What stands behind the thinking is how a reply begins that calls.
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
        """The text of a chat, with the beginning of the next reply if it asks for one."""
        if not self._vocabulary.has_template:
            return in_lines(messages)
        shape, chats = CallShape(), [messages]
        if any(message.tool_calls for message in messages):
            shape, form, _ = self._tried_calls
            if form is not None and not shape.writes:
                messages = [_said(message, form) for message in messages]
            # A template that takes any id may take none as well, or not.
            named = with_ids(messages, shape.ids)
            chats = [messages, named] if shape.ids is Ids.ANY else [named]
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
        """A chat as the template writes it.

        Raises:
            InvalidRequestError: it refuses it.
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
            raise  # The bound on memory ended it; the template refuses nothing.
        except Exception as error:  # the model's own code: it may raise anything
            raise InvalidRequestError(
                f"messages are refused by the model's chat template: {error}", "messages"
            ) from error
        return text

    def _shows_content(self, in_parts: bool) -> bool:
        """Whether the template writes what a message says, as text or as a list of parts.

        A template that refuses the message tells nothing, and is given text.
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
        """What the template puts behind the reply that ends the covered messages; None if that
        cannot be told, if the reply has thinking that the template does not repeat, or if it calls
        tools and the template writes something else behind that.
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
        """Whether the template writes what each tool gave, all of it behind the marked reply. Some
        write it only beside the call.
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
        """A reply with thinking, in the form in which the template may repeat it: in a field, or
        within the content where it reads no such field.
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
        # There is no template to write the token that begins a sequence, so the tokenizer adds it,
        # if it has one.
        token_ids = self._tokenizer.encode(text, add_special_tokens=True)
        while token_ids and token_ids[-1] in self._vocabulary.special:
            token_ids.pop()  # It ends a sequence, and the reply is still to come.
        return token_ids

    def _encode_tail(
        self,
        messages: Sequence[ChatMessage],
        context: Context,
        arguments: Mapping[str, object],
    ) -> list[int] | None:
        """What follows the ids of the context, or None as `_render_tail`."""
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
        """The text that the chat template writes before messages that are no replies, and behind
        those of tools, as far as that can be told. Text before replies is left out, because there
        the template may write more than the mark of a turn, such as the beginning of the reasoning.
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
        """A special token to encode a tail behind; "" if there is none.

        A metaspace tokenizer adds a space at the beginning of a text, and a tail must not get one.
        """
        for token_id, token in self._vocabulary.special.items():
            token_ids = self._tokenizer.encode(token + "\n", add_special_tokens=False)
            # A token that swallows the white space behind it will not do.
            if len(token_ids) > 1 and token_ids[0] == token_id:
                return token
        return ""


def _said(message: ChatMessage, form: Form) -> ChatMessage:
    """A message that has its calls in its content."""
    if not message.tool_calls:
        return message
    said = f"{message.content}{form.write(message.tool_calls)}"
    return replace(message, content=said, tool_calls=())
