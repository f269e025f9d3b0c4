"""Flags: the options of `tui`, and those that several of its commands share, in groups.

Options for settings have the names of the settings. None means not stated.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Option


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadParameter(f"{reprlib.repr(text)} is not JSON") from None


# Shells request completions by starting the program for each press of Tab, so each of these imports
# only what it needs. Without completions, a shell completes file names.


def _complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion with the names that begin with the typed text; none if `names` raises."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except Exception:  # A broken registry must not be printed between the words of a command.
            return []

    return complete


def _model_names() -> Iterable[str]:
    from engine.model.catalog.registry import Registry

    return Registry.read(None).entries


COMPLETE_MODEL = _complete(_model_names)


def _policy_names() -> Iterable[str]:
    from engine.scheduling.policies import policy_names

    return policy_names()


def _knob_values() -> Iterator[str]:
    """Each knob with each of its named values; the user types a number."""
    from engine.api.config import EngineConfig
    from engine.api.knobs import KNOB_SPECS
    from engine.scheduling.policies import policy_names

    config = EngineConfig(num_blocks=1, max_model_len=1)
    for spec in KNOB_SPECS:
        choices = spec.range(config, policy_names()).choices
        # A switch as `--knob` parses it.
        yield from (f"{spec.name}={str(one).lower()}" for one in choices)
        if not choices:
            yield f"{spec.name}="


def _theme_names() -> Iterable[str]:
    return ("dark", "light", "contrast", "ansi")


class FileFormat(StrEnum):
    """The formats of `tui export`."""

    JSON = "json"
    MARKDOWN = "markdown"


Quantize = Annotated[
    str | None,
    Option(
        "--quantize",
        metavar="WIDTH",
        help="Quantize weights at load: none, int8 or int4.",
        autocompletion=_complete(lambda: ("none", "int8", "int4")),
    ),
]
Format = Annotated[
    FileFormat,
    Option("--format", help="json has all branches and can be imported; markdown is for reading."),
]
Config = Annotated[
    Path | None, Option("--config", metavar="FILE", help="Configuration file to read.")
]
Models = Annotated[
    Path | None,
    Option("--models", metavar="FILE", help="Registry to use instead of the built-in one."),
]
Device = Annotated[
    str | None, Option("--device", metavar="NAME", help="Device: auto, cpu, cuda or cuda:N.")
]
MaxNumSeqs = Annotated[
    int | None, Option("--max-num-seqs", metavar="N", help="Most sequences in the batch.")
]
MaxNumBatchedTokens = Annotated[
    int | None, Option("--max-num-batched-tokens", metavar="N", help="Most tokens in a step.")
]
Policy = Annotated[
    str | None,
    Option(
        "--policy",
        metavar="NAME|MODULE:CLASS",
        help="Batching policy to start with.",
        autocompletion=_complete(_policy_names),
    ),
]
KnobTexts = Annotated[
    list[str] | None,
    Option(
        "--knob",
        metavar="NAME=VALUE",
        help="Start value of a knob; repeatable.",
        autocompletion=_complete(_knob_values),
    ),
]
Mqtt = Annotated[
    str | None,
    Option("--mqtt", metavar="URL", help="Broker: mqtt, mqtts, ws or wss://USER@HOST:PORT."),
]
Pool = Annotated[
    str | None, Option("--pool", metavar="NAME", help="Name of the servers' pool on the broker.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Options of every command but `tui models` and `tui doctor`."""

    log_level: Annotated[
        str | None,
        Option(
            "--log-level",
            metavar="LEVEL",
            help="Lowest level to log: debug, info, warning, error.",
            autocompletion=_complete(lambda: ("debug", "info", "warning", "error")),
        ),
    ] = None
    log_format: Annotated[
        str | None,
        Option(
            "--log-format",
            metavar="FORMAT",
            help="Lines of the log: text, or json, an object for each.",
            autocompletion=_complete(lambda: ("text", "json")),
        ),
    ] = None
    config: Config = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model, and its device."""

    model: Annotated[
        str | None,
        Option(
            "--model",
            metavar="NAME|FOLDER|HUB-ID",
            help="Model to load; see `tui models`.",
            autocompletion=COMPLETE_MODEL,
        ),
    ] = None
    models: Models = None
    device: Device = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Options for loading the model, and for the start of serving."""

    dtype: Annotated[
        str | None,
        Option(
            "--dtype",
            metavar="TYPE",
            help="Type of weights: auto, float32, bfloat16, float16.",
            autocompletion=_complete(lambda: ("auto", "float32", "bfloat16", "float16")),
        ),
    ] = None
    quantize: Quantize = None
    kv_memory: Annotated[
        str | None,
        Option("--kv-memory", metavar="SIZE", help="Memory of the KV cache, such as 2GiB."),
    ] = None
    num_blocks: Annotated[
        int | None,
        Option("--num-blocks", metavar="N", help="Size of the KV cache in blocks of 16 tokens."),
    ] = None
    swap_memory: Annotated[
        str | None,
        Option(
            "--swap-memory", metavar="SIZE", help="Host memory for swapped-out requests; 0 is none."
        ),
    ] = None
    snapshot_memory: Annotated[
        str | None,
        Option(
            "--snapshot-memory",
            metavar="SIZE",
            help="Memory for states of prefixes, if the model keeps states; 0 is none.",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Option("--max-model-len", metavar="N", help="Most tokens of a chat, with its reply."),
    ] = None
    max_num_seqs: MaxNumSeqs = None
    max_num_batched_tokens: MaxNumBatchedTokens = None
    policy: Policy = None
    knobs: KnobTexts = None
    system: Annotated[
        str | None,
        Option("--system", metavar="TEXT", help="System prompt of new chats."),
    ] = None
    pin_system: Annotated[
        bool | None, Option("--pin-system", help="Never evict the system prompt's blocks.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Options for sampling a reply."""

    max_tokens: Annotated[
        int | None, Option("--max-tokens", metavar="N", help="Most tokens of a reply.")
    ] = None
    temperature: Annotated[
        float | None,
        Option("--temperature", metavar="X", help="0 always takes the most likely token."),
    ] = None
    top_p: Annotated[
        float | None,
        Option(
            "--top-p", metavar="X", help="Sample from the fewest tokens of this total probability."
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Option("--top-k", metavar="N", help="Only the N most likely tokens; 0 is all."),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", metavar="N", help="Makes sampling repeatable.")
    ] = None
    stop: Annotated[
        list[str] | None,
        Option("--stop", metavar="TEXT", help="Text that ends a reply; repeatable."),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, object] | None,
        Option(
            "--chat-template-kwargs",
            metavar="JSON",
            parser=_json,
            help="Arguments of the chat template, such as '{\"enable_thinking\": false}'.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Options for the look of the interface."""

    theme: Annotated[
        str | None,
        Option(
            "--theme",
            metavar="NAME",
            help="dark, light, contrast, ansi, or one of Textual's.",
            autocompletion=_complete(_theme_names),
        ),
    ] = None
    ascii: Annotated[bool | None, Option("--ascii", help="Draw with ASCII characters only.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Options for chats over MQTT."""

    mqtt: Mqtt = None
    embedded_broker: Annotated[
        bool | None,
        Option("--embedded-broker", help="Run a broker on this machine, for trials."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """Options for requests over HTTP."""

    http: Annotated[
        str | None,
        Option("--http", metavar="[HOST:]PORT", help="Serve OpenAI's HTTP interface here."),
    ] = None
    api_key: Annotated[
        str | None,
        Option("--api-key", metavar="KEY", help="Key that HTTP clients must send."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Our credentials for a broker, and the certificates to verify it."""

    password_file: Annotated[
        Path | None,
        Option(
            "--password-file", metavar="FILE", help="File whose first line is the broker password."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Option("--ca-file", metavar="FILE", help="CA certificates for the broker's TLS."),
    ] = None
    cert_file: Annotated[
        Path | None, Option("--cert-file", metavar="FILE", help="Our client certificate.")
    ] = None
    key_file: Annotated[
        Path | None, Option("--key-file", metavar="FILE", help="Key of our client certificate.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server's addresses, and its names."""

    http: Http
    broker: Broker
    pool: Pool = None
    node: Annotated[
        str | None, Option("--node", metavar="NAME", help="This server's name in the pool.")
    ] = None
    credentials: Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The servers that a client uses, and their broker."""

    mqtt: Mqtt = None
    pool: Pool = None
    credentials: Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The options of `tui ask`.

    Attributes:
        question: the text; None and "-" mean the content of standard input.
        session: the name of a conversation that the server keeps for the user.
        system: the system prompt; None leaves it to the server.
        sampling: the stated parameters; the others are left to the server.
        priority: requests with a larger one go first.
        timeout: most seconds to wait, in all.
    """

    question: Annotated[
        str | None,
        Argument(metavar="QUESTION", help="The question; default, and for -: standard input."),
    ] = None
    session: Annotated[
        str | None, Option(metavar="ID", help="Conversation that the server keeps for you.")
    ] = None
    system: Annotated[
        str | None, Option(metavar="TEXT", help="System prompt; with --session, only at its start.")
    ] = None
    sampling: Sampling = field(default_factory=Sampling)
    priority: Annotated[int, Option(metavar="N", help="Requests with larger numbers go first.")] = 0
    timeout: Annotated[float, Option(metavar="S", help="Most seconds to wait in all.")] = 300.0
    no_stream: Annotated[
        bool, Option("--no-stream", help="Write the reply when it is complete.")
    ] = False
    as_json: Annotated[
        bool, Option("--json", help="Print the server's last message: final or error.")
    ] = False
