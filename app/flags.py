"""Flags: the options that several commands of `tui` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file to read.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME|FOLDER|HUB-ID", help="Model to load; see `tui models`."),
]
Models = Annotated[
    Path | None, typer.Option("--models", metavar="FILE", help="Registry instead of our own.")
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda or cuda:N.")
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
]

# Of an engine, and what it starts with.
Policy = Annotated[
    str | None,
    typer.Option("--policy", metavar="NAME|MODULE:CLASS", help="Batching policy to start with."),
]
KnobTexts = Annotated[
    list[str] | None,
    typer.Option("--knob", metavar="NAME=VALUE", help="Where a knob starts; repeatable."),
]
DataType = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16."),
]
KvMemory = Annotated[
    str | None,
    typer.Option("--kv-memory", metavar="SIZE", help="Memory of the KV cache, such as 2GiB."),
]
NumBlocks = Annotated[
    int | None, typer.Option("--num-blocks", metavar="N", help="Its blocks of 16 tokens, instead.")
]
MaxModelLen = Annotated[
    int | None,
    typer.Option("--max-model-len", metavar="N", help="Most tokens of a conversation."),
]
MaxNumSeqs = Annotated[
    int | None, typer.Option("--max-num-seqs", metavar="N", help="Most sequences in the batch.")
]
MaxNumBatchedTokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", metavar="N", help="Most tokens in a step.")
]
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", help="System prompt of new conversations."),
]
PinSystem = Annotated[bool | None, typer.Option("--pin-system", help="Never evict its blocks.")]

# Of a reply.
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", help="Most tokens of a reply.")
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", metavar="X", help="0 always takes the most likely token."),
]
TopP = Annotated[
    float | None, typer.Option("--top-p", metavar="X", help="Nucleus of this probability.")
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", metavar="N", help="Only the N most likely tokens; 0 is all."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Makes sampling repeatable.")]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="Ends a reply; may be given several times."),
]

# Of a broker.
Mqtt = Annotated[
    str | None,
    typer.Option("--mqtt", metavar="URL", help="Broker: mqtt, mqtts, ws or wss://USER@HOST:PORT."),
]
Pool = Annotated[
    str | None, typer.Option("--pool", metavar="NAME", help="Pool of servers on the broker.")
]
Node = Annotated[
    str | None, typer.Option("--node", metavar="NAME", help="This server's name in the pool.")
]
CaFile = Annotated[
    Path | None, typer.Option("--ca-file", metavar="FILE", help="Who signs the broker's TLS.")
]
CertFile = Annotated[
    Path | None, typer.Option("--cert-file", metavar="FILE", help="Our client certificate.")
]
KeyFile = Annotated[Path | None, typer.Option("--key-file", metavar="FILE", help="And its key.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Its first line is the password."),
]
Embedded = Annotated[
    bool | None,
    typer.Option("--embedded-broker", help="Run a broker on the loopback, for trying it out."),
]
