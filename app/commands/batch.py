"""batch: answers the requests of a file in OpenAI's batch format."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

from app.gateway.http.batches.answerer import Answerer
from app.gateway.http.protocol.batches import custom_id_of
from app.process.console import progress_bar, writing
from app.process.exits import ExitCode
from app.process.process import StreamError, complain, error_terminal
from app.process.serving import serving
from app.settings.settings import Settings
from engine.api.client import EngineClient

# The user name for requests of a file.
USER = "batch"


def run(settings: Settings, file: Path, output: Path | None, at_once: int) -> int:
    """Answer all requests that have no answer in the output; returns the exit code.

    Answers are appended to the output as they come, so that an interrupted run resumes where it
    stopped.

    Args:
        output: None is a file beside the requests, with the suffix .out.jsonl.
        at_once: most requests in the engine at a time.

    Raises:
        StreamError: a file cannot be read or written.
        ModelLoadError: the model could not be loaded.
    """
    output = output or file.with_suffix(".out.jsonl")
    answered = set(_answered(output))
    lines = [line for line in _lines(file) if custom_id_of(line) not in answered]
    failed = 0
    if lines:
        with (
            writing(output),
            output.open("a", encoding="utf-8") as out,
            serving(settings.load_request(), error_terminal()) as client,
        ):
            failed = asyncio.run(_answer(client, settings, at_once, lines, out))
    number = len(lines)
    skipped = f", {len(answered)} were answered before" if answered else ""
    complain(f"{number} answered, {failed} of them with an error{skipped}: {output}")
    return ExitCode.FAILED if failed else ExitCode.OK


async def _answer(
    client: EngineClient,
    settings: Settings,
    at_once: int,
    lines: list[bytes],
    out: TextIO,
) -> int:
    """Answer requests; returns how many ended with an error."""
    failed = 0
    with progress_bar() as progress:
        bar = progress.add_task("requests", total=len(lines))

        def tell(answer: str, is_well: bool) -> None:
            nonlocal failed
            failed += not is_well
            out.write(f"{answer}\n")
            out.flush()
            progress.advance(bar)

        answerer = Answerer(
            client,
            loop=asyncio.get_running_loop(),
            names="*",
            sampling=settings.sampling,
        )
        await _answer_each(answerer, lines, at_once, tell)
    return failed


async def _answer_each(
    answerer: Answerer, lines: Iterable[bytes], at_once: int, tell: Callable[[str, bool], None]
) -> None:
    """Answer requests.

    Args:
        tell: called with each answer, a line of JSON, and whether it succeeded, in the order in
            which requests end.
    """
    room = asyncio.Semaphore(at_once)

    async def one(line: bytes) -> None:
        try:
            answered = await answerer.answer(USER, line)
            tell(answered.line, answered.fault is None)
        finally:
            room.release()

    async with asyncio.TaskGroup() as tasks:
        for line in lines:
            await room.acquire()
            tasks.create_task(one(line))


def _lines(file: Path) -> list[bytes]:
    """The lines of a file that are not blank.

    Raises:
        StreamError: it cannot be read.
    """
    try:
        return [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise StreamError(f"{file} cannot be read: {error.strerror}") from error


def _answered(output: Path) -> Iterator[str]:
    """The ids of the answered requests. The last line may be truncated; it is no answer then, and
    the next answer begins a new line.

    Raises:
        StreamError: the file cannot be read, or is no such file.
    """
    if not os.path.exists(output):  # a folder that cannot be entered is reported when it is opened
        return
    lines = _lines(output)
    for number, line in enumerate(lines, start=1):
        name = custom_id_of(line)
        if name is not None:
            yield name
        elif number < len(lines):
            raise StreamError(f"{output} has no answer in line {number}; state another --output")
    if lines and not output.read_bytes().endswith(b"\n"):
        with writing(output), output.open("ab") as out:
            out.write(b"\n")
