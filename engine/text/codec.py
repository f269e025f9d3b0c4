"""ChatCodec: a model's tokenizer for the text thread and the encoding threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.api.client import ChatMessage
from engine.api.errors import ContextLengthError, InvalidRequestError
from engine.api.stream import Context
from engine.api.structure import Structure
from engine.api.tools import ToolUse
from engine.structure.grammar import Grammar
from engine.structure.lead import NO_LEAD, Lead, behind_channels, behind_tags
from engine.text.arguments import NO_ARGUMENTS, context_key
from engine.text.boundary import ToolCallBoundary
from engine.text.channels import ChannelParts, Channels, begins_message
from engine.text.detokenizer import Detokenizer
from engine.text.forms import types_of
from engine.text.grammars import Grammars
from engine.text.job import Encoder, PartialJob, PrefixJob, PromptJob, TextJob
from engine.text.messages import LINE_STOPS
from engine.text.parts import LineParts, Parts
from engine.text.reading import CallReader
from engine.text.thinking import TaggedParts, Tags
from engine.text.vocabulary import Vocabulary

# Tokens at the end of a prompt that contain a tag or header with which the reply begins.
_PROMPT_END = 32


class ChatCodec:
    """Converts chats to token ids by an encoder, and token ids to text by a vocabulary.

    The encoder runs in other processes, the vocabulary in this one. Any thread may call the
    encoding methods and `read_calls`. Only one thread may call the others, and use the
    detokenizers.

    Args:
        model_key: the model's `LoadedModel.key`.
        grammars: grammars of the model; None if it does not support structures.
        begins_thinking: see `ModelEntry.begins_thinking`.

    Attributes:
        turn_stops: texts that end a chat reply, beside the end-of-sequence tokens; empty with a
            chat template, which has a token for that.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder,
        model_key: str,
        grammars: Grammars | None = None,
        *,
        begins_thinking: bool = False,
    ) -> None:
        self.model_key = model_key
        self.begins_thinking = begins_thinking
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._grammars = grammars
        self._channels = Channels.find(vocabulary)
        self._tags = Tags.find(vocabulary, begins_thinking=begins_thinking)
        self._reader = CallReader(encoder, model_key)
        self.turn_stops = () if vocabulary.has_template else LINE_STOPS
        self._openings = self._reader.openings() if vocabulary.has_template else ()

    def encode(
        self,
        messages: Sequence[ChatMessage],
        context: Context | None,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        """See `ChatEncoder.encode`."""
        return self._encoder.run(PromptJob(tuple(messages), context, dict(arguments)))

    def encode_continuation(
        self,
        messages: Sequence[ChatMessage],
        context: Context | None,
        num_partial: int,
        arguments: Mapping[str, object] = NO_ARGUMENTS,
    ) -> tuple[list[int], int]:
        """Encode the prompt with which a model continues the reply that ends a chat.

        Args:
            context, num_partial: see `Submission`.

        Returns:
            its token ids, and how many of them, at the end, belong to the reply.

        Raises:
            InvalidRequestError: as `encode`, or the last message is not a reply.
        """
        if not messages or messages[-1].role != "assistant":
            role = messages[-1].role if messages else None
            raise InvalidRequestError(
                f"num_partial is {num_partial}, and the role of the last message is {role!r}; only "
                "a reply of the assistant can be continued",
                "num_partial",
            )
        if context is not None and context.num_messages == len(messages):
            if num_partial and context.model_key == context_key(self.model_key, arguments):
                return list(context.token_ids), num_partial
            context = None
        prompt = self.encode(messages[:-1], context, arguments)
        is_open = self.is_open(prompt, arguments)
        reply = self._encoder.run(PartialJob(messages[-1], is_open))
        return [*prompt, *reply], len(reply)

    def common_prefix(
        self, messages: Sequence[ChatMessage], arguments: Mapping[str, object] = NO_ARGUMENTS
    ) -> list[int]:
        """See `ChatEncoder.common_prefix`."""
        return self._encoder.run(PrefixJob(tuple(messages), dict(arguments)))

    def encode_text(self, text: str, *, is_whole: bool) -> list[int]:
        """See `ChatEncoder.encode_text`."""
        return self._encoder.run(TextJob(text, is_whole))

    def is_open(
        self, prompt: Sequence[int], arguments: Mapping[str, object] | None = NO_ARGUMENTS
    ) -> bool:
        """Whether a reply begins as thinking between tags.

        Args:
            prompt: the token ids before the reply.
            arguments: the chat template's; None if the prompt is a text.
        """
        if self._tags is None:
            return False
        begins = arguments is not None and arguments.get("enable_thinking") is not False
        return self._tags.are_open(self._end(prompt), begins=begins and self.begins_thinking)

    def grammar(
        self,
        structure: Structure,
        prompt: Sequence[int],
        num_partial: int,
        arguments: Mapping[str, object] | None = NO_ARGUMENTS,
    ) -> Grammar:
        """Compile the grammar of a reply with a structure after its thinking; blocks.

        Args:
            prompt: the token ids before the rest of the reply.
            num_partial: how many of them, at the end, belong to the reply.
            arguments: see `is_open`.

        Raises:
            InvalidRequestError: the structure cannot be compiled, or the reply has another one.
            EngineError: as `encode`.
        """
        if self._grammars is None:
            raise InvalidRequestError(
                "structure is stated, but this model does not support structures",
                "structure",
            )
        start = len(prompt) - num_partial
        grammar = self._grammars.grammar(structure, self._lead(prompt[:start], arguments))
        return grammar.behind(prompt[start:])

    def read_calls(
        self,
        context: Sequence[int],
        num_prompt: int,
        tools: Sequence[Mapping[str, object]],
        *,
        is_open: bool,
    ) -> ToolUse | None:
        """See `CallReader.read`."""
        return self._reader.read(context, num_prompt, tools, is_open=is_open)

    def check_size(self, size: int, max_model_len: int) -> None:
        """Check that a prompt can fit into the context, before spending time on its encoding.

        No token has more bytes than the longest one, so a longer text needs too many tokens. A
        normalizer or a template might drop some of the text and so make it fit. Such messages are
        refused too, but no usual text comes near this limit.

        Args:
            size: bytes of its text as UTF-8.
            max_model_len: tokens of the context.

        Raises:
            ContextLengthError: it is longer than `max_model_len` of the longest tokens.
        """
        longest = self._vocabulary.longest
        most = max_model_len * longest
        if size > most:
            raise ContextLengthError(
                f"the prompt is too long: {size} bytes of text > {most} allowed, {longest} (of the "
                f"longest token) for each token (maximum context length is {max_model_len} tokens)",
                "prompt",
            )

    def check_count(self, count: int, max_model_len: int) -> None:
        """Check that a prompt of this many token ids can fit into the context, before reading them.

        Raises:
            ContextLengthError: there are more than the context holds.
        """
        if count > max_model_len:
            raise ContextLengthError(
                f"the prompt is too long: {count} tokens > {max_model_len} allowed (maximum "
                f"context length is {max_model_len} tokens)",
                "prompt",
            )

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Check that token ids are in the vocabulary.

        Args:
            param: name of the field that holds them, for the message.

        Raises:
            InvalidRequestError: one is not.
        """
        last = self._vocabulary.size - 1
        for i, token_id in enumerate(token_ids):
            if type(token_id) is not int or not 0 <= token_id <= last:
                raise InvalidRequestError(
                    f"{param}[{i}] is {token_id!r}; it must be a token id from 0 to {last}", param
                )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode token ids, with special tokens by name."""
        return self._vocabulary.decode(list(token_ids), names_special=True)

    def detokenizer(self) -> Detokenizer:
        """Make a detokenizer for one reply."""
        return Detokenizer(self._vocabulary)

    def parts(
        self, prompt: Sequence[int], arguments: Mapping[str, object] | None = NO_ARGUMENTS
    ) -> Parts | None:
        """Make the splitter of one reply's thinking, content and markup; None if all of it is
        content.

        Args:
            prompt: the token ids before the reply.
            arguments: see `is_open`. In a chat without a template, a model is not asked to think.
        """
        if arguments is not None and not self._vocabulary.has_template:
            return LineParts()
        if self._channels is not None:
            return ChannelParts(self._channels, has_begun=begins_message(self._end(prompt)))
        if self._tags is None or arguments is None:
            return None  # A client that writes the prompt itself gets the tags as text.
        return TaggedParts(self._tags, is_open=self.is_open(prompt, arguments))

    def certain_text(self, tools: Sequence[Mapping[str, object]]) -> ToolCallBoundary | None:
        """Make the finder of a reply's text outside calls of these tools, used before its calls are
        parsed; None if it is unknown how a call begins.
        """
        if self._openings is None:
            return None
        return ToolCallBoundary(self._openings, [str(name) for name in types_of(tools)])

    def special_name(self, token_id: int) -> str:
        """The name of a special token; "" for any other."""
        return self._vocabulary.special.get(token_id, "")

    def _lead(self, prompt: Sequence[int], arguments: Mapping[str, object] | None) -> Lead:
        """The text that a reply may have before its structure, as `parts` splits it."""
        end = self._end(prompt)
        if self._channels is not None:
            return behind_channels(*self._channels) if begins_message(end) else NO_LEAD
        tags = self._tags
        # A template that stops a model from thinking writes an empty thinking part itself.
        if tags is None or end.endswith(tags.close):
            return NO_LEAD
        return behind_tags(*tags, is_open=self.is_open(prompt, arguments))

    def _end(self, prompt: Sequence[int]) -> str:
        """The text at the end of a prompt, without trailing blanks."""
        end = b"".join(map(self.utf8, prompt[-_PROMPT_END:])).decode(errors="replace")
        return end.rstrip()

    def utf8(self, token_id: int) -> bytes:
        """Bytes of one token by itself (`Vocabulary.utf8`)."""
        return self._vocabulary.utf8(token_id)
