"""ScriptedChat: a request whose reply is given, until it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.api.client import Submission
from engine.api.errors import EngineError
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.api.stream import Context, Delta, Finish, RequestStream, Thought
from engine.batch.plan import End
from engine.text.boundary import ToolCallBoundary, beside_calls
from engine.text.parts import Parts
from engine.text.thinking import TaggedParts, Tags
from tests.support.replies import OPENING, use_in
from tests.support.scripted_core import MODEL_KEY

THINK = Tags("<think>", "</think>")


@dataclass(slots=True, eq=False)
class ScriptedChat:
    """
    Attributes:
        script: token ids of the reply.
        stop: the stop string that ends it.
        error: what its owner is to be told instead of how it ended in the core.
        parts: tells the thinking of the reply from the rest.
        certain: finds what of the rest is no part of a call.
        said: the rest of it so far.
        num_shown: characters of both, and of what stands between them.
        began: when its first tokens came; None before that.
        num_partial: how many tokens it had that were made by requests before.
    """

    submission: Submission
    stream: RequestStream
    prompt: tuple[int, ...]
    script: list[int]
    sampling: SamplingParams
    arrival: float
    stop: str | None = None
    error: EngineError | None = None
    parts: Parts = field(default_factory=lambda: TaggedParts(THINK, is_open=False))
    certain: ToolCallBoundary = field(default_factory=lambda: ToolCallBoundary([OPENING], []))
    said: str = ""
    num_shown: int = 0
    began: float | None = None
    num_partial: int = 0

    def resume(self, texts: list[tuple[int, str]]) -> None:
        """Take in what the reply had before."""
        self.num_partial = len(texts)
        if texts:
            delta = self.take(texts, None, 0.0)
            self.began = None
            self.stream.put(replace(delta, num_tokens=0))

    def skip(self, texts: list[tuple[int, str]]) -> None:
        """Take in what the reply had before, of which nothing is told."""
        for token_id, text in texts:
            self.parts.read_token(token_id, text)
        self.parts.skip("".join(text for _, text in texts))

    def take(self, texts: list[tuple[int, str]], finish: Finish | None, now: float) -> Delta:
        """Report the next tokens, which are given with their texts, to the owner."""
        for token_id, text in texts:
            self.certain.read_token(text, "", thinks=self.parts.thinks)
            self.parts.read_token(token_id, text)
            self.began = now if self.began is None else self.began
        if self.began is not None and self.parts.num_thinking != self.stream.thought.tokens:
            self.stream.thought = Thought(self.parts.num_thinking, now - self.began)
        if finish is not None:
            self.parts.end("")
            usage = replace(finish.usage, reasoning_tokens=self.parts.num_thinking)
            finish = replace(finish, usage=usage)
            if self.stream.thought.tokens:
                timings = replace(finish.timings, thinking=self.stream.thought.seconds)
                finish = replace(finish, timings=timings)
        thinking, text = self.parts.split("".join(text for _, text in texts))
        self.said += text
        self.num_shown += sum(len(piece) for _, piece in texts)
        self.certain.add_content(text, self.num_shown)
        if finish is not None and finish.reason is FinishReason.STOP:
            use = use_in(self.said) if self.sampling.tools else None
            if use is not None:
                use = replace(use, content=beside_calls(self.certain.text, use.content))
            finish = replace(finish, tool_use=use, stop=self.stop)
        certain = self.certain.length if self.sampling.tools else 0
        return Delta(text, len(texts), finish, thinking=thinking, num_certain=certain)

    def finish(self, end: End, last: int) -> Finish:
        """Report the end to the owner; `last` is the token that closes a message."""
        usage = replace(
            end.usage,
            prompt_tokens=max(0, end.usage.prompt_tokens - self.num_partial),
            completion_tokens=end.usage.completion_tokens + self.num_partial,
        )
        if self.error is not None:
            return Finish(FinishReason.ERROR, usage, end.timings, self.error.info())
        ids, goes_on = (*end.token_ids, last), self.submission.num_partial is not None
        context = Context(MODEL_KEY, ids, len(self.submission.messages) + 1 - goes_on)
        return Finish(end.reason, usage, end.timings, end.error, None if end.error else context)
