"""Demo: a scripted crowd on the built-in model, in the interface, or as lines and a table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.conversations.session import ChatSession
from app.process import heap
from app.process.columns import align
from app.process.exits import ExitCode
from app.process.process import error_terminal, print_text
from app.process.serving import load_model, serving
from app.screens.demo.script import SAMPLING, SCRIPTS, SYSTEM
from app.settings.layers import load_interface
from app.settings.settings import Settings
from app.store.conversation import Conversation, Message
from engine.api.client import EngineClient, LoadRequest
from engine.api.telemetry import Distribution, StepRecord
from engine.batch.plan import Runner, StepPlan, StepResult
from engine.serving.loading import LoadedModel, Progress

# So few blocks that the crowd of the interface does not fit and some request is preempted.
POOL_BLOCKS = 40
KNOBS = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
# 20 tokens a second for each chat, the speed of a large model.
STEP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class _Handle:
    handle: object
    started: float


class Paced:
    """A `Runner` around another one, which makes each step take a while.

    The built-in model is so small that its replies would be complete before anyone could look.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def depth(self) -> int:
        return self._runner.depth

    def start_step(self, plan: StepPlan) -> _Handle:
        return _Handle(self._runner.start_step(plan), time.monotonic())

    def result(self, handle: object) -> StepResult:
        assert isinstance(handle, _Handle)
        result = self._runner.result(handle.handle)
        time.sleep(max(0.0, handle.started + STEP_SECONDS - time.monotonic()))
        return result


def load_paced(request: LoadRequest, progress: Progress) -> LoadedModel:
    """Load a model that computes at the pace of the demonstration."""
    model = load_model(request, progress)
    return replace(model, runner=Paced(model.runner))


@dataclass(slots=True)
class _Chat:
    """A chat and its remaining questions."""

    name: str
    session: ChatSession
    questions: list[str]

    def ask(self) -> None:
        if self.questions:
            self.session.send(self.questions.pop(0))

    @property
    def replies(self) -> tuple[Message, ...]:
        return self.session.messages[1::2]


def show_crowd(options: dict[str, object]) -> int:
    """Show a crowd in the interface until the user leaves; returns the exit code.

    Args:
        options: those of the command line, by name.
    """
    with heap.building():
        from app.screens import tui
        from app.screens.demo.demonstration import Demonstration
        from app.store.store import Store
        from engine.serving.host import EngineHost

    config = options.pop("config", None)
    assert config is None or isinstance(config, Path)
    settings, own = load_interface(options, config)
    request = LoadRequest(
        "builtin", device=settings.device, num_blocks=POOL_BLOCKS, knobs={**KNOBS, **settings.knobs}
    )
    with tempfile.TemporaryDirectory(prefix="tui-demo-") as folder:
        store = Store(Path(folder, "demo.db"))
        client = EngineHost(load_paced)
        try:
            return tui.run(client, store, settings, request, own=own, kind=Demonstration)
        finally:
            store.close()


def run(settings: Settings) -> int:
    """Run the chats on the built-in model and print them; returns the exit code.

    Raises:
        ModelLoadError: the model could not be loaded.
    """
    request = LoadRequest("builtin", device=settings.device, knobs=settings.knobs)
    with serving(request, error_terminal()) as client:
        return ExitCode.OK if run_chats(client, print_text) else ExitCode.FAILED


def run_chats(client: EngineClient, write: Callable[[str], None]) -> bool:
    """Run the chats on an engine that has served nothing yet; returns whether every reply came.

    Each reply is written when it is complete, and then its chat asks the next question at once.

    Args:
        write: receives one or more lines of text.
    """
    chats = [
        _Chat(f"chat {number}", _session(client), list(script))
        for number, script in enumerate(SCRIPTS, 1)
    ]
    for chat in chats:
        chat.ask()
    while busy := [chat for chat in chats if chat.session.is_busy]:
        # All of them are in the same batch, so updates of one come with updates of the others.
        busy[0].session.wait()
        for chat in busy:
            chat.session.poll()
            if not chat.session.is_busy:
                write(_turn(chat))
                chat.ask()
    for line in report(chats, client.step_records(0)):
        write(line)
    return all(reply.error is None for chat in chats for reply in chat.replies)


def report(chats: Sequence[_Chat], records: Sequence[StepRecord]) -> list[str]:
    """The figures of replies and steps, as lines."""
    return ["", *_replies(chats), "", *(_steps(records) if records else ())]


def _session(client: EngineClient) -> ChatSession:
    conversation = Conversation(system=SYSTEM, source="demo")
    return ChatSession(client, conversation, sampling=SAMPLING)


def _turn(chat: _Chat) -> str:
    question, reply = chat.session.messages[-2:]
    text = reply.error.message if reply.error else reply.content
    return f"{chat.name} > {question.content}\n" + "\n".join(
        f"    {line}" for line in text.strip().splitlines()
    )


def _replies(chats: Sequence[_Chat]) -> list[str]:
    header = ("", "replies", "prompt", "cached", "output", "queue", "TTFT", "TPOT")
    rows: list[tuple[str, ...]] = [header, ("", "", "tokens", "tokens", "tokens", "ms", "ms", "ms")]
    rows += [_row(chat.name, chat.replies, "p50") for chat in chats]
    replies = [reply for chat in chats for reply in chat.replies]
    rows += [_row("all, p50", replies, "p50"), ("p99", *"    ", *_row("", replies, "p99")[5:])]
    return align(rows, numbers=range(1, len(header)))


def _row(name: str, replies: Sequence[Message], percentile: str) -> tuple[str, ...]:
    """A row with the sums of the token counts and one percentile of each time."""
    usages = [reply.usage for reply in replies if reply.usage]
    timings = [reply.timings for reply in replies if reply.timings]
    return (
        name,
        str(len(replies)),
        str(sum(usage.prompt_tokens for usage in usages)),
        str(sum(usage.cached_tokens for usage in usages)),
        str(sum(usage.completion_tokens for usage in usages)),
        *(
            _milliseconds((getattr(t, quantity) for t in timings), percentile)
            for quantity in ("queue", "ttft", "tpot")
        ),
    )


def _milliseconds(samples: Iterable[float | None], percentile: str) -> str:
    known = Distribution.of(s for s in samples if s is not None)
    return f"{getattr(known, percentile) * 1000:.1f}" if known.count else "-"


def _steps(records: Sequence[StepRecord]) -> list[str]:
    """Lines about batch and cache, from the first step to the last."""
    seconds = records[-1].end - records[0].start
    rows = Distribution.of(r.prefill_rows + r.decode_rows for r in records)
    tokens = Distribution.of(r.num_tokens for r in records)
    duration = Distribution.of(r.duration * 1000 for r in records)
    output = sum(r.output_tokens for r in records)
    queried = sum(r.prefix_queried_tokens for r in records)
    hits = sum(r.prefix_hit_tokens for r in records)
    most_used = max(r.used_blocks for r in records)
    last = records[-1]
    blocks = last.free_blocks + last.cached_blocks + last.used_blocks
    facts = [
        (
            "steps",
            f"{len(records)} in {seconds:.2f} s, p50 {duration.p50:.1f} ms, "
            f"p99 {duration.p99:.1f} ms each",
        ),
        ("output", f"{output} tokens, {output / seconds:.0f} tokens/s"),
        (
            "batch",
            f"{rows.mean:.1f} sequences a step, at most "
            f"{max(r.prefill_rows + r.decode_rows for r in records)}; "
            f"{tokens.mean:.1f} tokens a step, at most {max(r.num_tokens for r in records)} "
            f"of {last.budget}",
        ),
        (
            "KV cache",
            f"at most {most_used} of {blocks} blocks used ({most_used / blocks:.1%}); "
            f"{last.cached_blocks} hold reusable prefixes at the end",
        ),
        ("prefix hits", f"{hits} of {queried} prompt tokens ({hits / max(queried, 1):.0%})"),
        ("preemptions", str(sum(len(r.preempted) for r in records))),
    ]
    return align(facts)
