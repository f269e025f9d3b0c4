"""Options: the command lines of `tui bench` and `tui simulate`, as typed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from app.settings.flags import MaxNumBatchedTokens, MaxNumSeqs, Quantize

Burstiness = Annotated[
    float, Option(metavar="X", help="Shape of the gamma-distributed gaps; 1 is Poisson.")
]
OutputLen = Annotated[str, Option(metavar="LEN", help="The same; requests announce the largest.")]
InputLen = Annotated[
    str, Option(metavar="LEN", help="N, uniform:LOW:HIGH or exponential:MEAN:CAP.")
]
Policies = Annotated[str, Option(metavar="NAME,...", help="Policies to compare.")]
Seed = Annotated[int, Option("--seed", metavar="N", help="Makes the workload repeatable.")]
JsonFile = Annotated[
    Path | None, Option("--json", metavar="FILE", help="Write all figures to this file.")
]
Svg = Annotated[Path | None, Option(metavar="FOLDER", help="Write charts to this folder.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The settings for loading a model that a benchmark accepts. None means not stated."""

    dtype: Annotated[str | None, Option(metavar="TYPE", help="As `tui` has it.")] = None
    quantize: Quantize = None
    num_blocks: Annotated[
        int | None, Option(metavar="N", help="Blocks of the KV cache, of 16 tokens.")
    ] = None
    max_model_len: Annotated[int | None, Option(metavar="N", help="Most tokens of a sequence.")] = (
        None
    )
    max_num_seqs: MaxNumSeqs = None
    max_num_batched_tokens: MaxNumBatchedTokens = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The command line of `tui bench`. None and empty mean not stated.

    Attributes:
        more_targets: further targets of `--goodput`, which accepts several, as `vllm bench serve`
            does.
    """

    more_targets: Annotated[list[str], Argument(metavar="NAME:MS", hidden=True)] = field(
        default_factory=list
    )
    simulate: Annotated[
        str | None,
        Option(metavar="DEVICE:MODEL", help="Device and model to simulate: h100:llama-8b."),
    ] = None
    charge_padding: Annotated[
        bool, Option("--charge-padding", help="Let simulated padding cost time.")
    ] = False
    num_prompts: Annotated[
        int | None, Option(metavar="N", help="Number of requests; default 100, or all of a file.")
    ] = None
    request_rate: Annotated[
        float | None, Option(metavar="R", help="Arrivals a second; default: all at once.")
    ] = None
    burstiness: Burstiness = 1.0
    max_concurrency: Annotated[
        int | None, Option(metavar="N", help="Most requests at once: a closed loop.")
    ] = None
    random_input_len: InputLen = "128"
    random_output_len: OutputLen = "128"
    random_prefix_len: Annotated[
        int, Option(metavar="N", help="Length of the prefix that prompts share.")
    ] = 0
    num_prefixes: Annotated[
        int, Option(metavar="N", help="Number of such prefixes, used in turn.")
    ] = 1
    turns: Annotated[int, Option(metavar="N", help="Make each request a chat of N turns.")] = 1
    think_time: Annotated[
        float, Option(metavar="S", help="Seconds between the turns of a chat.")
    ] = 0.0
    dataset_path: Annotated[
        Path | None,
        Option(metavar="FILE", help="Workload: JSON lines, Azure trace or ShareGPT."),
    ] = None
    goodput: Annotated[
        list[str],
        Option(metavar="NAME:MS...", help="Targets of ttft, tpot, e2el, such as ttft:200."),
    ] = field(default_factory=list)
    policy: Policies | None = None
    compare: Annotated[
        list[str],
        Option(metavar="K=V,...", help="A setting to compare; repeatable."),
    ] = field(default_factory=list)
    knob: Annotated[
        list[str], Option(metavar="K=V", help="A knob for all settings; repeatable.")
    ] = field(default_factory=list)
    rounds: Annotated[int, Option(metavar="N", help="Runs of each setting, interleaved.")] = 1
    num_warmups: Annotated[
        int, Option(metavar="N", help="Unmeasured requests before each setting.")
    ] = 1
    seed: Seed = 0
    json_file: JsonFile = None
    svg: Svg = None
    plot: Annotated[bool, Option("--plot", help="Draw charts in the terminal.")] = False
    save_steps: Annotated[
        Path | None,
        Option(metavar="FILE", help="Write the step records, for `tui simulate --fit`."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The command line of `tui simulate`. None means not stated. Targets are in milliseconds."""

    device: Annotated[
        str | None, Option(metavar="NAME", help="h100 (the default), h200, l4, ...")
    ] = None
    model: Annotated[
        str | None, Option(metavar="NAME", help="llama-8b (the default), opt-13b, ...")
    ] = None
    policy: Policies = "stall_free"
    rate: Annotated[str, Option(metavar="A:B:xK|A:B:+K|R,...", help="Requests a second.")] = (
        "1:64:x2"
    )
    requests: Annotated[int, Option(metavar="N", help="Requests at each rate.")] = 1000
    input_len: InputLen = "128"
    output_len: OutputLen = "exponential:128:512"
    burstiness: Burstiness = 1.0
    ttft_target: Annotated[
        float, Option(metavar="MS", help="Target of the time to first token, for goodput.")
    ] = 1000.0
    tpot_target: Annotated[
        float, Option(metavar="MS", help="Target of the time per output token.")
    ] = 100.0
    kv_slots: Annotated[
        int | None, Option(metavar="N", help="Token slots of the pool; default: all that fit.")
    ] = None
    swap_memory: Annotated[
        str | None, Option(metavar="SIZE", help="Host memory for swapping; default: none.")
    ] = None
    knob: Annotated[
        list[str], Option(metavar="K=V", help="A knob for all policies; repeatable.")
    ] = field(default_factory=list)
    fit: Annotated[
        Path | None,
        Option(metavar="FILE", help="Fit costs to a file of `tui bench --save-steps`."),
    ] = None
    charge_padding: Annotated[
        bool, Option("--charge-padding", help="Let the padding of static batches cost time.")
    ] = False
    seed: Seed = 0
    json_file: JsonFile = None
    svg: Svg = None
