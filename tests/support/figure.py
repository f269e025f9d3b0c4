"""figure: what a policy plans, drawn as text, one column a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.api.lifecycle import RequestState
from engine.api.telemetry import StepRecord
from engine.batch.plan import Request
from tests.support.harness import CoreHarness
from tests.support.scripted_runner import reference

STEP_SECONDS = 0.01
_WIDTH = 4


@dataclass(frozen=True)
class Chat:
    """A request of a figure: it announces `most` output tokens and ends after `output`."""

    name: str
    arrival: int
    prompt: int
    output: int
    most: int = 12


def draw(chats: Sequence[Chat], num_blocks: int = 24, **options: object) -> str:
    """The steps of a core under these knobs, each counted as 10 ms.

    `4` is a chunk of 4 prompt tokens, `4*` one that ends its prompt and gives a token, `*` a decode
    that gives one, `-` a request that runs and gets nothing, `x` one that has ended and keeps its
    slot, `.` one that waits. Below are the tokens of each step, those that a padded batch would
    compute besides, and the share of the given KV slots that is unused.
    """
    harness = CoreHarness(num_blocks=num_blocks, max_num_seqs=4, **options)  # type: ignore[arg-type]
    arrivals = sorted(chats, key=lambda chat: chat.arrival)
    requests: dict[str, Request] = {}
    columns: list[dict[str, str]] = []
    while len(harness.ends) < len(chats):
        for chat in arrivals:
            if chat.arrival == len(columns):
                requests[chat.name] = _submit(harness, chat)
        before, moment = len(harness.runner.plans), harness.clock.now
        ended = {r for r in requests.values() if r.state is RequestState.FINISHED}
        parked = {seq for seq, _blocks in harness.scheduler.books.groups.parked_tables()}
        harness.step()
        plans = harness.runner.plans[before:]
        harness.clock.now = moment + STEP_SECONDS
        rows = {row.seq: row for plan in plans for row in plan.rows}
        column = {}
        for name, request in requests.items():
            seq = request.ordinal
            if request in ended:
                column[name] = "x" if seq in parked else ""
            elif seq in rows:
                count = str(rows[seq].count) if rows[seq].prefill else ""
                column[name] = count + ("*" if rows[seq].samples else "")
            else:
                column[name] = "-" if request.state is RequestState.RUNNING else "."
        if plans:
            column |= _figures(harness.records[-1])
        columns.append(column)
    lines = ["".join([f"{'ms':<9}", *(f"{10 * n:<{_WIDTH}}" for n in range(len(columns)))])]
    for name in [*(chat.name for chat in chats), "tokens", "padding", "unused %"]:
        lines.append("".join([f"{name:<9}", *(f"{c.get(name, ''):<{_WIDTH}}" for c in columns)]))
    return "\n".join(line.rstrip() for line in lines)


def _submit(harness: CoreHarness, chat: Chat) -> Request:
    # No two prompts begin alike, and the token that ends a reply comes at no other place in it.
    prompt = [ord(chat.name) + i for i in range(chat.prompt)]
    tokens = reference(prompt, chat.output)
    assert tokens.index(tokens[-1]) == chat.output - 1
    harness.submit(chat.name, prompt, chat.most, stop_token_ids=(tokens[-1],))
    return harness.request(chat.name)


def _figures(record: StepRecord) -> dict[str, str]:
    padding = record.padding_tokens + record.bubble_tokens
    return {
        "tokens": str(record.num_tokens),
        "padding": str(padding) if padding else "",
        "unused %": f"{100 * record.kv_waste:.0f}",
    }
