"""The cost for a neighbour of the largest request that each field allows.

    python -m benchmarks.abuse [--fields NAME,NAME] [--seconds N] [--json FILE]

`tui serve --http` runs the built-in model in a process of its own, with two keys. One of them sends
the largest request that a field allows, with the most replies where it has `n`, reads the answer,
and sends it again until the time is over. The other one asks for 16 tokens, again and again. The
latency of such a small request is told alone, measured right before, and beside the large one, to
its end: in the median, as the ratio of that to the median alone, and the longest. At most 10 times
the latency alone are aimed at in the median, and at most 1 s for the longest.

The status is that of the large request: one that is within all bounds may be refused still, since
it does not fit into the context or takes too much to compile, and is to cost no more for that. None
is one that had not ended when the time was over.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from app.gateway.http.protocol.generating import MAX_CHOICES
from app.gateway.http.protocol.turns import MAX_MESSAGES
from app.gateway.stated import MAX_PARTS
from app.process.columns import row
from app.process.console import write_json
from benchmarks.heading import heading
from benchmarks.options import positive_float
from benchmarks.paced import wait_for
from engine.api import structure
from engine.api.sampling import (
    MAX_ARGUMENT_BYTES,
    MAX_BIASES,
    MAX_LOGPROBS,
    MAX_STOP_BYTES,
    MAX_STOP_TOKENS,
    MAX_STOPS,
)
from engine.api.structure import MAX_STRUCTURE_BYTES
from engine.api.tools import MAX_TOOLS, MAX_TOOLS_BYTES

TIMES = 10.0
LONGEST_MS = 1000.0
ALONE = 9
TOKENS = 16
# A body has 4 MiB at most, with what stands around its text.
BODY = (1 << 22) - 256
# Of the built-in model's context, some 1,900 tokens of its text.
FITS = 6_000
WIDTHS = (-30, -22, 6, 6, 9, 9, 7, 9, -6)
HEAD = ("field", "address", "status", "sent", "alone ms", "beside ms", "times", "longest ms", "")

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
HELLO = [{"role": "user", "content": "hello"}]
_SHOWN = 300
_PROGRAM = "from app.commands.cli import main; main()"

Body = Mapping[str, Any]


def _text(size: int) -> str:
    return ("and so the story goes on " * (size // 25 + 1))[:size]


def _tool(number: int, size: int, **more: Any) -> dict[str, Any]:
    function = {"name": f"f{number}", "description": _text(size), **more}
    return {"type": "function", "function": function}


def _named(count: int, size: int) -> dict[str, str]:
    return {f"name{number}": "x" * size for number in range(count)}


def _schema() -> dict[str, Any]:
    """An object with as many properties as a structure has room for, each a text of a form."""
    form = {"type": "string", "pattern": "^[a-z]{1,40}$"}
    # The name is stated twice.
    count = MAX_STRUCTURE_BYTES // (len(json.dumps(form)) + 24)
    inside = {f"p{number}": form for number in range(count)}
    return {"type": "object", "properties": inside, "required": [*inside]}


def cases() -> dict[str, dict[str, Body]]:
    """Bodies by address, and by the field whose largest value they state."""
    most = {"n": MAX_CHOICES}
    chat: Body = {"messages": HELLO, **most}
    text: Body = {"prompt": "hello", **most}
    choices = [f"{number:04}{'x' * 100}" for number in range(structure.MAX_CHOICES)]
    grammar = "start: " + " | ".join(f'"{one}"' for one in choices) + "\n"
    stop = ["a" * (MAX_STOP_BYTES // MAX_STOPS - 1) + chr(98 + n) for n in range(MAX_STOPS)]
    told = {"logprobs": True, "top_logprobs": MAX_LOGPROBS, "max_tokens": 390}
    few = [_tool(number, 20) for number in range(MAX_TOOLS)]
    parts = [{"type": "text", "text": "x"}] * MAX_PARTS
    items = [{"role": "user", "content": "x"}] * MAX_MESSAGES
    tools = [_tool(n, MAX_TOOLS_BYTES // MAX_TOOLS - 130) for n in range(MAX_TOOLS)]
    plain = [{"type": "function", **one["function"]} for one in tools]
    claude = [{**one["function"], "input_schema": {"type": "object"}} for one in tools]
    own = {"max_tokens": 512}
    return {
        CHAT: {
            "n": chat,
            "n, stream": {**chat, "stream": True},
            "n, ignore_eos": {**chat, "ignore_eos": True},
            "messages, that fit": {**chat, "messages": [{"role": "user", "content": _text(FITS)}]},
            "messages, long": {**chat, "messages": [{"role": "user", "content": _text(BODY)}]},
            "messages, not ASCII": {
                **chat,
                "messages": [{"role": "user", "content": "é" * (BODY // 6)}],
            },
            "messages, many": {**chat, "messages": HELLO * MAX_MESSAGES},
            "messages.content, parts": {**chat, "messages": [{"role": "user", "content": parts}]},
            "stop": {**chat, "stop": stop},
            "stop_token_ids": {
                **chat,
                "stop_token_ids": [*range(100, 100 + MAX_STOP_TOKENS)],
                "min_tokens": 256,
            },
            "logit_bias": {**chat, "logit_bias": {f"{n}": -1 for n in range(MAX_BIASES)}},
            "penalties": {
                **chat,
                "presence_penalty": 2,
                "frequency_penalty": 2,
                "repetition_penalty": 100,
                "top_p": 0.5,
                "min_p": 0.01,
                "top_k": 2**31 - 1,
                "temperature": 100,
                "seed": 2**64 - 1,
            },
            "top_logprobs": {**chat, **told},
            "top_logprobs, stream": {**chat, **told, "stream": True},
            "prompt_logprobs": {
                **chat,
                "messages": [{"role": "user", "content": _text(FITS)}],
                "n": 8,
                "prompt_logprobs": MAX_LOGPROBS,
                "max_tokens": 1,
            },
            "tools, many": {**chat, "tools": few},
            "tools, long": {**chat, "tools": tools},
            "chat_template_kwargs": {
                **chat,
                "chat_template_kwargs": {"documents": [_text(MAX_ARGUMENT_BYTES - 100)]},
            },
            "chat_template_kwargs, many": {
                **chat,
                "chat_template_kwargs": _named(MAX_ARGUMENT_BYTES // 30, 8),
            },
            "response_format": {
                **chat,
                "response_format": {"type": "json_schema", "json_schema": {"schema": _schema()}},
            },
            "structured_outputs": {**chat, "structured_outputs": {"json": _schema()}},
            "guided_json": {**chat, "guided_json": _schema()},
            "guided_regex": {**chat, "guided_regex": "(a|b)*c{1,1000}" * 8_000},
            "guided_choice": {**chat, "guided_choice": choices},
            "guided_grammar": {**chat, "guided_grammar": grammar},
            "user": {**chat, "user": "x" * BODY},
            "no field": {**chat, "unknown": [[]] * (BODY // 4)},
        },
        TEXT: {
            "prompt, that fits": {**text, "prompt": _text(FITS), "max_tokens": 64},
            "prompt, long": {**text, "prompt": _text(BODY)},
            "prompt, many": {"prompt": [_text(FITS)] * MAX_CHOICES, "max_tokens": 16},
            "prompt, token ids": {**text, "prompt": [100] * (BODY // 5)},
            "prompt, lists of them": {"prompt": [[100] * 1_000] * MAX_CHOICES, "max_tokens": 16},
            "logprobs, echo": {
                **text,
                "prompt": _text(FITS),
                "n": 16,
                "echo": True,
                "logprobs": MAX_LOGPROBS,
                "max_tokens": 64,
            },
            "suffix": {**text, "suffix": "x" * BODY},
        },
        RESPONSES: {
            "input, long": {"input": _text(BODY)},
            "input, many": {"input": items},
            "instructions": {"input": "hello", "instructions": _text(BODY)},
            "tools": {"input": "hello", "tools": plain},
            "text": {
                "input": "hello",
                "text": {"format": {"type": "json_schema", "name": "x", "schema": _schema()}},
            },
            "metadata": {"input": "hello", "metadata": _named(16, 512)},
        },
        MESSAGES: {
            "messages": {**own, "messages": [{"role": "user", "content": _text(BODY)}]},
            "messages, blocks": {**own, "messages": [{"role": "user", "content": parts}]},
            "system": {**own, "messages": HELLO, "system": _text(BODY)},
            "tools": {**own, "messages": HELLO, "tools": claude},
            "metadata": {**own, "messages": HELLO, "metadata": {"user_id": "x" * BODY}},
            "stop_sequences": {**own, "messages": HELLO, "stop_sequences": stop},
            "output_config": {
                **own,
                "messages": HELLO,
                "output_config": {"format": {"type": "json_schema", "schema": _schema()}},
            },
        },
        TOKENIZE: {
            "prompt": {"prompt": _text(BODY)},
            "prompt, of many tokens": {"prompt": "\x01\x02" * (BODY // 12)},
            "messages": {"messages": [{"role": "user", "content": _text(BODY)}]},
        },
        DETOKENIZE: {"tokens": {"tokens": [100] * (BODY // 5)}},
    }


class Server:
    """`tui serve --http`, with the keys `abuser` and `neighbour`."""

    def __init__(self, folder: Path) -> None:
        with closing(socket.socket()) as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]
        keys = "".join(f'[http.keys.{name}]\nkey = "{name}"\n' for name in ("abuser", "neighbour"))
        config = folder / "config.toml"
        config.write_text(f'[http]\nlisten = "127.0.0.1:{self.port}"\n{keys}', encoding="utf-8")
        folders = {f"XDG_{name}_HOME": str(folder) for name in ("CONFIG", "DATA", "STATE")}
        command = [sys.executable, "-c", _PROGRAM, "serve", "--config", str(config)]
        with (folder / "said").open("w", encoding="utf-8") as said:
            self.process = subprocess.Popen(command, stderr=said, env={**os.environ, **folders})
        self.path = folder / "said"

    def wait(self) -> None:
        """Until a model is served.

        Raises:
            RuntimeError: the server has ended.
        """
        wait_for(self._is_there, "the model loaded")

    def _is_there(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(self.path.read_text(encoding="utf-8"))
        try:
            return self._get("/health") == 200
        except OSError:
            return False

    def _get(self, path: str) -> int:
        with closing(self.connected(5.0)) as line:
            line.request("GET", path, headers={"Authorization": "Bearer neighbour"})
            return line.getresponse().status

    def connected(self, seconds: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)

    def post(
        self, key: str, path: str, body: bytes, line: http.client.HTTPConnection
    ) -> tuple[int, bytes]:
        """The status and the beginning of an answer, all of which is read."""
        head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        line.request("POST", path, body, head)
        answer = line.getresponse()
        begin = answer.read(_SHOWN)
        while answer.read(1 << 16):
            pass
        return answer.status, begin

    def latency_ms(self, number: int) -> float:
        """Of a small request, from its beginning to its end."""
        asked = {"messages": [{"role": "user", "content": f"hello {number}"}], "max_tokens": TOKENS}
        begun = time.monotonic()
        with closing(self.connected(60.0)) as line:
            status, _ = self.post("neighbour", CHAT, json.dumps(asked).encode(), line)
        if status != 200:
            raise RuntimeError(f"a small request was answered with {status}")
        return 1000 * (time.monotonic() - begun)


class Abuser:
    """Sends a request, and again once it is answered, on a thread of its own."""

    def __init__(self, server: Server, path: str, body: bytes) -> None:
        self._server, self._path, self._body = server, path, body
        self._over = threading.Event()
        self._line: http.client.HTTPConnection | None = None
        self.status: int | None = None
        self.said = ""
        self.num_sent = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            line = self._line
            if line is not None and line.sock is not None:
                line.sock.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._line = self._server.connected(600.0)
            self.num_sent += 1
            try:
                with closing(self._line):
                    self.status, begin = self._server.post(
                        "abuser", self._path, self._body, self._line
                    )
                    self.said = begin.decode(errors="replace")
            except (OSError, http.client.HTTPException):
                if not self._over.is_set():
                    raise


def measure(server: Server, field: str, path: str, body: Body, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    alone = statistics.median(server.latency_ms(number) for number in range(ALONE))
    abuser = Abuser(server, path, json.dumps(body).encode())
    beside: list[float] = []
    with abuser.at_work():
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            beside.append(server.latency_ms(len(beside)))
    median, longest = statistics.median(beside), max(beside)
    return {
        "field": field,
        "path": path,
        "status": abuser.status,
        "said": "" if abuser.status == 200 else abuser.said,
        "sent": abuser.num_sent,
        "alone_ms": alone,
        "beside_ms": median,
        "times": median / alone,
        "longest_ms": longest,
        "is_met": median <= TIMES * alone and longest <= LONGEST_MS,
    }


def _row(told: Mapping[str, Any]) -> str:
    cells = [
        *(told["field"], told["path"], str(told["status"] or "-"), str(told["sent"])),
        *(f"{told[name]:.0f}" for name in ("alone_ms", "beside_ms")),
        f"{told['times']:.1f}",
        f"{told['longest_ms']:.0f}",
        "" if told["is_met"] else "MISSED",
    ]
    return row(cells, WIDTHS)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.abuse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--fields", help="those whose names contain one of these, as `stop,tools`", default=""
    )
    parser.add_argument(
        "--seconds", type=positive_float, default=3.0, help="that each one is sent for"
    )
    parser.add_argument("--json", type=Path, dest="json_file", metavar="FILE")
    options = parser.parse_args()
    wanted = options.fields.split(",")
    about = heading(f"load {psutil.getloadavg()[0]:.2f} at the start")
    print(about, row(HEAD, WIDTHS), sep="\n", flush=True)
    found = []
    with TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            server.wait()
            # The spare process that encodes starts with the server, and takes a core for a second.
            measure(server, "", RESPONSES, cases()[RESPONSES]["input, many"], options.seconds)
            for path, bodies in cases().items():
                for field, body in bodies.items():
                    if any(one in field for one in wanted):
                        found.append(measure(server, field, path, body, options.seconds))
                        print(_row(found[-1]), flush=True)
        finally:
            server.process.terminate()
            server.process.wait()
    if options.json_file is not None:
        write_json({"about": about, "fields": found}, options.json_file)


if __name__ == "__main__":
    main()
