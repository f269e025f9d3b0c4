"""OutputProcessor: converts the core's token ids to text in the owners' streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.api.errors import ErrorInfo, cause_of
from engine.api.lifecycle import FinishReason, Timings
from engine.api.logprobs import Candidate, OutputToken, PromptLogprobs, PromptToken, TokenLogprobs
from engine.api.sampling import SamplingParams
from engine.api.stream import Context, Delta, Finish, RequestStream, Thought, Usage
from engine.api.tools import ToolUse
from engine.batch.plan import End, StopFound, TokenOutput
from engine.text.boundary import ToolCallBoundary, behind_skipped, beside_calls
from engine.text.codec import ChatCodec
from engine.text.detokenizer import Detokenizer
from engine.text.parts import Parts
from engine.text.stops import StopMatcher

logger = logging.getLogger(__name__)

_BEFORE = -1  # the number of tokens that a stop string may not end with (`StopMatcher.push`)


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """A reply whose text is complete, but whose tool calls have not been read.

    Attributes:
        user: its owner.
        finish: its end without tool calls.
        context, num_prompt, tools, is_open: see `ChatCodec.read_calls`.
    """

    user: str
    finish: Finish
    context: Sequence[int]
    num_prompt: int
    tools: Sequence[Mapping[str, object]]
    is_open: bool


@dataclass(slots=True, eq=False)
class _Reply:
    """An open stream and the state of its text.

    Attributes:
        user: its owner.
        tools: functions that the model may call.
        num_messages: messages of the prompt.
        key: identifies the contexts that it continues (`Context.model_key`).
        parts: splits thinking from content; None if the model does not think.
        num_tokens: output tokens so far, up to a stop string.
        num_reported: how many of them previous deltas have counted.
        num_shown: characters that passed the search for stop strings.
        logprobs: one for each token that no delta has counted yet, if requested.
        first: the first token of the prompt, if its log-probabilities are requested.
        prompt: prompt log-probabilities since the last delta.
        began: when the first tokens came; None before that.
        num_partial: how many of its tokens previous requests generated.
        repeats_partial: see `Submission`.
        skipped: the start of its content that is not sent.
        turns: texts that end it without being stated (`ChatCodec.turn_stops`).
        is_open: see `ChatCodec.is_open`.
        certain: finds the text outside tool calls; None without tools, or if nothing is certain.
    """

    stream: RequestStream
    codec: ChatCodec
    user: str
    tools: Sequence[Mapping[str, object]]
    num_messages: int
    detokenizer: Detokenizer
    matcher: StopMatcher
    key: str
    parts: Parts | None = None
    certain: ToolCallBoundary | None = None
    num_tokens: int = 0
    num_reported: int = 0
    num_shown: int = 0
    logprobs: list[OutputToken] = field(default_factory=list)
    first: int | None = None
    prompt: list[PromptToken] = field(default_factory=list)
    began: float | None = None
    num_partial: int = 0
    repeats_partial: bool = True
    skipped: str = ""
    turns: tuple[str, ...] = ()
    is_open: bool = False

    def resume(self, token_ids: Sequence[int]) -> tuple[str, str]:
        """Process the tokens of the partial reply; returns their thinking and text.

        They do not complete a stop string, as they did not before, but one may begin in them.
        """
        pieces = []
        for token_id in token_ids:
            name = self.codec.special_name(token_id)
            pieces.append(self.matcher.push(self._read(token_id), _BEFORE, name))
        self.num_partial = len(token_ids)
        if self.parts is not None:
            self.stream.thought = Thought(self.parts.num_thinking, 0.0)
        return self._split("".join(pieces))

    def skip(self, token_ids: Sequence[int]) -> None:
        """Process the tokens of the partial reply without sending anything."""
        text = "".join(map(self._read, token_ids))
        self.num_partial, self.repeats_partial = len(token_ids), False
        self.skipped = text if self.parts is None else self.parts.skip(text)
        self._record_output("", len(text))

    def think(self, now: float) -> None:
        """Update the stream's thinking, now that tokens have come."""
        if self.parts is None:
            return
        if self.began is None:
            self.began = now
        if self.parts.num_thinking != self.stream.thought.tokens:
            self.stream.thought = Thought(self.parts.num_thinking, now - self.began)

    def extend(self, token_ids: Sequence[int]) -> tuple[str, str]:
        """Process the next tokens; returns the thinking and the text to show for them."""
        if len(token_ids) == 1 and self.matcher.stopped_at is None:  # the usual case
            return self._split(self._push(token_ids[0]))
        pieces = []
        for token_id in token_ids:
            if self.matcher.stopped_at is not None:
                break
            pieces.append(self._push(token_id))
        return self._split("".join(pieces))

    def flush(self, last: int | None = None) -> tuple[str, str]:
        """Return the rest of the text, which counts as text of the last token.

        Args:
            last: the token that ended the output and is not shown.
        """
        piece = self.detokenizer.flush()
        if self.parts is not None:
            self.parts.end(piece)
        name = "" if last is None else self.codec.special_name(last)
        rest = self.matcher.push(piece, self.num_tokens, name)
        return self._split(rest + self.matcher.flush())

    def put(self, thinking: str, text: str, finish: Finish | None = None) -> bool:
        """Put news into the stream; False if there are none."""
        if not text and not thinking and finish is None and not self.prompt:
            return False
        count = self.num_tokens - self.num_reported
        self.num_reported = self.num_tokens
        certain = 0 if self.certain is None else self.certain.length
        if finish is None and not self.logprobs and not self.prompt:
            self.stream.add(text, count, thinking, certain)
        else:
            logprobs, prompt = tuple(self.logprobs), tuple(self.prompt)
            self.stream.put(Delta(text, count, finish, logprobs, thinking, certain, prompt))
            self.logprobs.clear()
            self.prompt.clear()
        return True

    def sent_tool_use(self, use: ToolUse) -> ToolUse:
        """The reply's tool calls, and its content without the skipped start."""
        content = behind_skipped(self.skipped, use.content)
        if self.certain is not None:
            content = beside_calls(self.certain.text, content)
        return use if content == use.content else replace(use, content=content)

    def counted(self, usage: Usage) -> Usage:
        """Add the thinking tokens to a usage, and the partial reply if the stream repeats it."""
        count = 0 if self.parts is None else self.parts.num_thinking
        num_partial = self.num_partial if self.repeats_partial else 0
        prompt = max(0, usage.prompt_tokens - num_partial)
        completion = usage.completion_tokens + num_partial
        cached = min(usage.cached_tokens, prompt)
        return Usage(prompt, completion, cached, min(count, completion))

    def timed(self, timings: Timings) -> Timings:
        """Add the thinking time to timings."""
        thought = self.stream.thought
        return replace(timings, thinking=thought.seconds) if thought.tokens else timings

    def _push(self, token_id: int) -> str:
        """The text that is certain to be shown with the next token."""
        self.num_tokens += 1
        name = self.codec.special_name(token_id)
        return self.matcher.push(self._read(token_id), self.num_tokens, name)

    def _read(self, token_id: int) -> str:
        """The text that the next token makes certain, before the search for stop strings."""
        piece = self.detokenizer.push(token_id)
        thinks = self.parts is not None and self.parts.thinks
        if self.parts is not None:
            self.parts.read_token(token_id, piece)
            thinks = thinks and self.parts.thinks
        if self.certain is not None:
            self.certain.read_token(piece, self.codec.special_name(token_id), thinks=thinks)
        return piece

    def _split(self, text: str) -> tuple[str, str]:
        found = ("", text) if self.parts is None else self.parts.split(text)
        if self.certain is not None:
            self._record_output(found[1], len(text))
        return found

    def _record_output(self, content: str, num_shown: int) -> None:
        """Record output content, and that many more characters to show."""
        self.num_shown += num_shown
        undecided = 0 if self.parts is None else self.parts.num_undecided
        if self.certain is not None:
            self.certain.add_content(content, self.num_shown - undecided)


class OutputProcessor:
    """Detokenizes, matches stop strings and fills the streams, off the step's critical path.

    Every call comes from the engine's text thread. Each opened stream ends exactly once.

    Args:
        abort: called with the id of a request whose tokens cannot be decoded, to end it.
        read: called with a reply to read its tool calls; call `end` afterwards.
    """

    def __init__(
        self, codec: ChatCodec, abort: Callable[[str], None], read: Callable[[Ending], None]
    ) -> None:
        self._codec = codec
        self._abort = abort
        self._read = read
        self._replies: dict[str, _Reply] = {}
        self._endings: dict[Ending, _Reply] = {}
        self._has_warned = False

    def is_open(self, request_id: str) -> bool:
        """Whether a stream with this request id has not ended."""
        return request_id in self._replies or any(
            reply.stream.request_id == request_id for reply in self._endings.values()
        )

    def open(
        self,
        stream: RequestStream,
        sampling: SamplingParams,
        num_messages: int,
        prompt: Sequence[int],
        user: str = "",
        num_partial: int = 0,
        *,
        key: str,
        repeats_partial: bool = True,
    ) -> None:
        """Register a stream for outputs.

        The caller has checked that no stream with this request id is open.

        Args:
            num_messages: messages of the prompt; 0 if it is a text.
            prompt: the prompt's token ids.
            user: the request's owner.
            num_partial: how many of them, at the end, belong to a reply to continue.
            key: identifies the contexts that it continues (`engine.text.arguments.context_key`).
            repeats_partial: whether the stream repeats that reply's text at once, or not at all.
        """
        start = len(prompt) - num_partial
        is_free = not sampling.ignore_eos and sampling.structure is None
        turns = self._codec.turn_stops if num_messages and is_free else ()
        turns = tuple(stop for stop in turns if stop not in sampling.stop)
        arguments = sampling.template_arguments if num_messages else None
        reply = _Reply(
            stream,
            self._codec,
            user,
            sampling.tools,
            num_messages,
            self._codec.detokenizer(),
            StopMatcher(sampling.stop + turns, sampling.min_tokens),
            key,
            self._codec.parts(prompt[:start], arguments),
            self._codec.certain_text(sampling.tools) if sampling.tools else None,
            first=prompt[0] if sampling.prompt_logprobs is not None and prompt else None,
            turns=turns,
            is_open=bool(sampling.tools) and self._codec.is_open(prompt[:start], arguments),
        )
        if num_partial and repeats_partial:
            reply.put(*reply.resume(prompt[start:]))
        elif num_partial:
            reply.skip(prompt[start:])
        self._replies[stream.request_id] = reply

    def process(self, outputs: Sequence[TokenOutput], now: float) -> list[StopFound]:
        """Put the text of a step's outputs into their streams; wake each reader once.

        Outputs without an open stream are dropped: `close_all` has ended those.

        Args:
            now: when the step ended, in seconds.

        Returns:
            requests that still run in the core although their text has reached a stop string.
        """
        found: list[StopFound] = []
        news = []
        for output in outputs:
            reply = self._replies.get(output.request_id)
            if reply is None:
                continue
            try:
                has_news = self._process_output(reply, output, found, now)
            except BaseException as error:  # a panic of tokenizers is not an Exception
                # A tokenizer is the model's own code: an error ends only this reply.
                logger.exception("the text of request %s is lost", output.request_id)
                self._replies.pop(output.request_id, None)
                self._abort(output.request_id)
                message = f"the reply could not be made text: {cause_of(error)}"
                info = ErrorInfo("engine_error", message)
                usage = reply.counted(Usage(0, reply.num_tokens, 0))
                finish = Finish(FinishReason.ERROR, usage, reply.timed(Timings()), info)
                has_news = reply.put("", "", finish)
            if has_news:
                news.append(reply.stream)
        _wake(news)
        return found

    def _process_output(
        self, reply: _Reply, output: TokenOutput, found: list[StopFound], now: float
    ) -> bool:
        """Put one output into its stream, and a stop that it causes into `found`.

        Returns:
            whether the stream has news for its owner.
        """
        if output.end is not None:
            has_news = self._finish(reply, output, output.end, now)
            del self._replies[output.request_id]
            return has_news
        if output.prompt is not None:
            self._add_prompt_logprobs(reply, output.prompt)
            return reply.put("", "")
        already, num_before = reply.matcher.stopped_at, reply.num_tokens
        thinking, text = reply.extend(output.token_ids)
        reply.think(now)
        if output.logprobs:
            self._add_logprobs(reply, output, num_before)
        if already is None and reply.matcher.stopped_at is not None:
            found.append(StopFound(output.request_id, reply.matcher.stopped_at))
        return reply.put(thinking, text)

    def end(self, ending: Ending, tool_use: ToolUse | None) -> None:
        """End a reply whose tool calls were read; ignored if it has already ended."""
        reply = self._endings.pop(ending, None)
        if reply is not None:
            tool_use = None if tool_use is None else reply.sent_tool_use(tool_use)
            reply.put("", "", replace(ending.finish, tool_use=tool_use))
            _wake([reply.stream])

    def end_unread(self) -> None:
        """End the replies whose tool calls have not been read, without the calls."""
        for ending in tuple(self._endings):
            self.end(ending, None)

    def close_all(self, error: ErrorInfo) -> None:
        """End every open stream, because the engine has stopped and the core will report no ends.

        Their usage counts the received output tokens; the rest of it is unknown.
        """
        self.end_unread()
        replies = list(self._replies.values())
        self._replies.clear()
        for reply in replies:
            rest = reply.flush()
            usage = reply.counted(Usage(0, reply.num_tokens, 0))
            reply.put(*rest, Finish(FinishReason.ERROR, usage, reply.timed(Timings()), error))
        _wake(reply.stream for reply in replies)

    def _add_logprobs(self, reply: _Reply, output: TokenOutput, num_before: int) -> None:
        """Add text to the tokens' log-probabilities, up to the end of a stop string."""
        count = reply.num_tokens - num_before
        for token_id, found in zip(output.token_ids[:count], output.logprobs, strict=False):
            chosen = Candidate(token_id, self._codec.utf8(token_id), found.logprob)
            reply.logprobs.append(OutputToken(chosen, found.rank, self._top(found)))

    def _add_prompt_logprobs(self, reply: _Reply, found: PromptLogprobs) -> None:
        """Add text to the prompt's log-probabilities. The first token has none, and is sent with
        the ones after it.
        """
        utf8 = self._codec.utf8
        if reply.first is not None:
            reply.prompt.append(PromptToken(reply.first, utf8(reply.first)))
            reply.first = None
        reply.prompt += [
            PromptToken(token_id, utf8(token_id), one.logprob, one.rank, self._top(one))
            for token_id, one in found
        ]

    def _top(self, found: TokenLogprobs) -> tuple[Candidate, ...]:
        return tuple([Candidate(i, self._codec.utf8(i), logprob) for i, logprob in found.top])

    def _finish(self, reply: _Reply, output: TokenOutput, end: End, now: float) -> bool:
        # A token at which the core stops ends the output like a stop string: it is not shown.
        token_ids, num_before = output.token_ids, reply.num_tokens
        has_stopped = end.reason is FinishReason.STOP
        first = reply.extend(token_ids[:-1] if has_stopped else token_ids)
        if reply.matcher.stopped_at is None:
            reply.num_tokens = end.usage.completion_tokens
        reply.think(now)
        self._add_logprobs(reply, output, num_before)
        timings = reply.timed(end.timings)
        rest = reply.flush(token_ids[-1] if has_stopped and token_ids else None)
        thinking, text = (a + b for a, b in zip(first, rest, strict=True))
        if reply.parts is not None and reply.parts.closes_unopened and reply.num_messages:
            self._warn_of_thinking()
        if end.reason is FinishReason.ERROR:
            usage = reply.counted(end.usage)
            return reply.put(thinking, text, Finish(end.reason, usage, timings, end.error))
        reason, usage, context_ids = end.reason, end.usage, end.token_ids
        if reply.matcher.stopped_at is not None:
            # The core may have ended later for another reason, before it learned of the stop.
            surplus = max(0, usage.completion_tokens - reply.matcher.stopped_at)
            reason = FinishReason.STOP
            usage = replace(usage, completion_tokens=usage.completion_tokens - surplus)
            context_ids = context_ids[: len(context_ids) - surplus]
        context: Context | None = Context(reply.key, context_ids, reply.num_messages + 1)
        if reply.turns and reason is FinishReason.STOP:
            # The ids may end with the line that begins another message, or with a token after which
            # a model starts another text. The next turn is encoded anew.
            context = None
        stop = reply.matcher.stopped_by
        stop = None if stop in reply.turns else stop
        finish = Finish(reason, reply.counted(usage), timings, context=context, stop=stop)
        # The calls of a truncated reply may lack arguments.
        if reason is not FinishReason.STOP or not reply.tools:
            return reply.put(thinking, text, finish)
        num_prompt = end.usage.prompt_tokens - reply.num_partial
        ending = Ending(
            reply.user, finish, context_ids, num_prompt, reply.tools, is_open=reply.is_open
        )
        self._endings[ending] = reply
        has_news = reply.put(thinking, text)
        self._read(ending)
        return has_news

    def _warn_of_thinking(self) -> None:
        """Warn, once, of a reply whose thinking is shown as content because nothing opened it."""
        if not self._has_warned and not self._codec.begins_thinking:
            self._has_warned = True
            logger.warning(
                "%s: a reply closed thinking that neither it nor the prompt had opened, and showed "
                "it as content; if all its replies begin with thinking, set begins_thinking = true "
                "in the model's entry of models.toml",
                self._codec.model_key,
            )


def _wake(streams: Iterable[RequestStream]) -> None:
    """Call each distinct `wake` once; an error is its owner's fault and affects no other."""
    for wake in dict.fromkeys(stream.wake for stream in streams):
        if wake is None:
            continue
        try:
            wake()
        except BaseException:
            logger.exception("the wake call of a stream's reader failed")
