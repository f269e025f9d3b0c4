"""The command `tui`: the interface, or a plain program where there is no terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

# Nothing of weight at the top, for `--help` and `--version` answer at once: typer takes 0.05 s,
# with rich for the help text 0.3 s, settings 0.15 s, textual 0.3 s, torch seconds.
import typer

from app import argv, flags
from app.exits import ExitCode
from app.versions import version

if TYPE_CHECKING:
    from app.settings import Settings

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batchdeck {version('batchdeck') or '(a checkout that is not installed)'}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog="See docs/operating.md for all settings.")
def _tui(
    context: typer.Context,
    model: flags.Model = None,
    models: flags.Models = None,
    device: flags.Device = None,
    dtype: flags.DataType = None,
    kv_memory: flags.KvMemory = None,
    num_blocks: flags.NumBlocks = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    policy: flags.Policy = None,
    knobs: flags.KnobTexts = None,
    system: flags.System = None,
    pin_system: flags.PinSystem = None,
    max_tokens: flags.MaxTokens = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    mqtt: flags.Mqtt = None,
    embedded_broker: flags.Embedded = None,
    each: Annotated[
        bool, typer.Option("--each", help="Plain program: a line is a conversation, all at once.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Plain program: one JSON object for each reply.")
    ] = False,
    log_level: flags.LogLevel = None,
    config: flags.Config = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Chat with a language model that runs here; watch and steer the batch.

    Where standard input or output is no terminal, each line of input is a turn of one conversation
    and the replies go to standard output.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    settings = _settings(context)
    from app import plain, process

    if process.is_terminal(sys.stdin) and process.is_terminal(sys.stdout):
        if each or as_json:
            raise typer.BadParameter(
                "it is for the plain program, where standard input or output is no terminal",
                param_hint="--each" if each else "--json",
            )
        code = process.run(settings, lambda: _interface(settings), stderr=False)
    else:
        if mqtt is not None or embedded_broker:
            raise typer.BadParameter(
                "it is for the interface; without a terminal there is `tui serve`",
                param_hint="--mqtt" if mqtt is not None else "--embedded-broker",
            )
        code = process.run(
            settings, lambda: plain.run(settings, each=each, as_json=as_json), stderr=True
        )
    raise typer.Exit(code)


@app.command("models")
def _models(
    context: typer.Context,
    models: flags.Models = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the reasons.")] = False,
    config: flags.Config = None,
) -> None:
    """List the models of the registry and say which can be loaded here."""
    settings = _settings(context)
    from app import models as listing
    from app import process

    raise typer.Exit(
        process.run(settings, lambda: listing.run(settings, as_json=as_json), stderr=True)
    )


@app.command("doctor")
def _doctor(
    context: typer.Context,
    model: flags.Model = None,
    models: flags.Models = None,
    device: flags.Device = None,
    mqtt: flags.Mqtt = None,
    config: flags.Config = None,
) -> None:
    """Show versions, device, memory and files, and what is missing."""
    from app import doctor, process

    settings, trouble = doctor.settings_or_default(_flags(context), config)
    raise typer.Exit(
        process.run(settings, lambda: doctor.run(settings, config, trouble), stderr=False)
    )


@app.command("demo")
def _demo(
    context: typer.Context,
    device: flags.Device = None,
    policy: flags.Policy = None,
    knobs: flags.KnobTexts = None,
    log_level: flags.LogLevel = None,
    config: flags.Config = None,
) -> None:
    """Hold eight scripted chats at once on the built-in model and show what the batch did."""
    settings = _settings(context)
    from app import demo, process

    raise typer.Exit(process.run(settings, lambda: demo.run(settings), stderr=True))


@app.command("serve")
def _serve(
    context: typer.Context,
    mqtt: flags.Mqtt = None,
    embedded_broker: flags.Embedded = None,
    pool: flags.Pool = None,
    node: flags.Node = None,
    password_file: flags.PasswordFile = None,
    ca_file: flags.CaFile = None,
    cert_file: flags.CertFile = None,
    key_file: flags.KeyFile = None,
    model: flags.Model = None,
    models: flags.Models = None,
    device: flags.Device = None,
    dtype: flags.DataType = None,
    kv_memory: flags.KvMemory = None,
    num_blocks: flags.NumBlocks = None,
    max_model_len: flags.MaxModelLen = None,
    max_num_seqs: flags.MaxNumSeqs = None,
    max_num_batched_tokens: flags.MaxNumBatchedTokens = None,
    policy: flags.Policy = None,
    knobs: flags.KnobTexts = None,
    system: flags.System = None,
    pin_system: flags.PinSystem = None,
    max_tokens: flags.MaxTokens = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    log_level: flags.LogLevel = None,
    config: flags.Config = None,
) -> None:
    """Serve chats over MQTT, without a screen; SIGTERM lets what runs end."""
    settings = _settings(context)
    from app import process, serve

    # What goes on is for whoever reads the service's log.
    settings = settings.model_copy(update={"log_level": settings.log_level or "info"})
    raise typer.Exit(process.run(settings, lambda: serve.run(settings), stderr=True))


@app.command("ask")
def _ask(
    context: typer.Context,
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="Else, and for -, standard input.")
    ] = None,
    mqtt: flags.Mqtt = None,
    pool: flags.Pool = None,
    password_file: flags.PasswordFile = None,
    ca_file: flags.CaFile = None,
    cert_file: flags.CertFile = None,
    key_file: flags.KeyFile = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Conversation that the server keeps for you.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt; of a session, at its start.")
    ] = None,
    max_tokens: flags.MaxTokens = None,
    temperature: flags.Temperature = None,
    top_p: flags.TopP = None,
    top_k: flags.TopK = None,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    priority: Annotated[
        int,
        typer.Option(min=-1_000_000, max=1_000_000, metavar="N", help="Larger goes first."),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=86_400, metavar="S", help="Most seconds to wait in all.")
    ] = 300.0,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Write the reply when it is whole.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the server's last message: final or error.")
    ] = False,
    log_level: flags.LogLevel = None,
    config: flags.Config = None,
) -> None:
    """Ask a server over MQTT, and write its reply as it comes."""
    settings = _settings(context)
    from app import ask, process

    options = ask.Options.of(context.params)
    raise typer.Exit(process.run(settings, lambda: ask.run(settings, options), stderr=False))


@app.command("bench")
def _bench(
    context: typer.Context,
    more_targets: Annotated[
        # So that --goodput takes several, as vllm has it.
        list[str] | None, typer.Argument(metavar="NAME:MS", hidden=True)
    ] = None,
    model: flags.Model = None,
    models: flags.Models = None,
    device: flags.Device = None,
    dtype: Annotated[str | None, typer.Option(metavar="TYPE", help="As `tui` has it.")] = None,
    num_blocks: Annotated[
        int | None, typer.Option(metavar="N", help="Blocks of the KV cache, of 16 tokens.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of a sequence.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Most sequences in the batch.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens in a step.")
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(metavar="DEVICE:MODEL", help="Simulate these, such as h100:llama-8b."),
    ] = None,
    charge_padding: Annotated[
        bool, typer.Option("--charge-padding", help="Simulated padding costs time.")
    ] = False,
    num_prompts: Annotated[
        int | None, typer.Option(metavar="N", help="Requests; 100, or all of a file.")
    ] = None,
    request_rate: Annotated[
        float | None, typer.Option(metavar="R", help="Arrivals a second; else all at once.")
    ] = None,
    burstiness: Annotated[
        float, typer.Option(metavar="X", help="Shape of the gamma gaps; 1 is Poisson.")
    ] = 1.0,
    max_concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Most requests at once: a closed loop.")
    ] = None,
    random_input_len: Annotated[
        str, typer.Option(metavar="LEN", help="N, uniform:LOW:HIGH or exponential:MEAN:CAP.")
    ] = "128",
    random_output_len: Annotated[
        str, typer.Option(metavar="LEN", help="Likewise; its most is what requests announce.")
    ] = "128",
    random_prefix_len: Annotated[
        int, typer.Option(metavar="N", help="Tokens that prompts begin with in common.")
    ] = 0,
    num_prefixes: Annotated[int, typer.Option(metavar="N", help="Different ones, in turn.")] = 1,
    turns: Annotated[
        int, typer.Option(metavar="N", help="Each prompt begins a conversation of N turns.")
    ] = 1,
    think_time: Annotated[
        float, typer.Option(metavar="S", help="Seconds between its turns.")
    ] = 0.0,
    dataset_path: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Workload: JSON lines, Azure trace or ShareGPT."),
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:MS...", help="Targets of ttft, tpot, e2el, as ttft:200."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V,...", help="A setting to compare; give it several times."),
    ] = None,
    knob: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A knob, for all settings.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", help="Runs of each setting, interleaved.")
    ] = 1,
    num_warmups: Annotated[
        int, typer.Option(metavar="N", help="Requests under each setting that are not measured.")
    ] = 1,
    load_seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Makes the load repeatable.")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures there.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write charts there.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw charts in the terminal.")] = False,
    save_steps: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the step records, for `tui simulate --fit`."),
    ] = None,
    log_level: flags.LogLevel = None,
    config: flags.Config = None,
) -> None:
    """Measure the engine under a load, or several settings side by side."""
    settings = _settings(context)
    from app import process
    from app.bench import command
    from app.bench.options import Options

    options = Options.of(context.params)
    raise typer.Exit(process.run(settings, lambda: command.run(settings, options), stderr=True))


@app.command("simulate")
def _simulate(
    context: typer.Context,
    device_name: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="h100 (the default), h200, l4, ..."),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="llama-8b (the default), opt-13b, ..."),
    ] = None,
    policy: Annotated[
        str, typer.Option(metavar="NAME,...", help="Policies to compare.")
    ] = "stall_free",
    rate: Annotated[
        str, typer.Option(metavar="A:B:xK|A:B:+K|R,...", help="Requests a second.")
    ] = "1:64:x2",
    requests: Annotated[int, typer.Option(metavar="N", help="Requests at each rate.")] = 1000,
    input_len: Annotated[
        str, typer.Option(metavar="LEN", help="N, uniform:LOW:HIGH or exponential:MEAN:CAP.")
    ] = "128",
    output_len: Annotated[
        str, typer.Option(metavar="LEN", help="Likewise; its most is what requests announce.")
    ] = "exponential:128:512",
    burstiness: Annotated[
        float, typer.Option(metavar="X", help="Shape of the gamma gaps; 1 is Poisson.")
    ] = 1.0,
    ttft_target: Annotated[
        float, typer.Option(metavar="MS", help="Most time to first token, for the goodput.")
    ] = 1000.0,
    tpot_target: Annotated[
        float, typer.Option(metavar="MS", help="Most time per output token.")
    ] = 100.0,
    kv_slots: Annotated[
        int | None, typer.Option(metavar="N", help="Token slots; else what the memory holds.")
    ] = None,
    knob: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A knob, for all policies.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Learn costs from `tui bench --save-steps` instead."),
    ] = None,
    charge_padding: Annotated[
        bool, typer.Option("--charge-padding", help="Padding of static batches costs time.")
    ] = False,
    load_seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Makes the load repeatable.")
    ] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures there.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write charts there.")] = None,
    log_level: flags.LogLevel = None,
    config: flags.Config = None,
) -> None:
    """Run the scheduler on a simulated device at rising rates: throughput, latency, goodput."""
    settings = _settings(context)
    from app import process, simulate

    options = simulate.Options.of(context.params)
    raise typer.Exit(process.run(settings, lambda: simulate.run(options), stderr=True))


def _interface(settings: Settings) -> int:
    from app import tui
    from app.serve import mqtt_gateway
    from app.serving import load_model
    from app.store import Store
    from engine.host import EngineHost

    store = Store(settings.store_file)
    client = EngineHost(load_model)
    try:
        with mqtt_gateway(settings, client) as gateway:
            return tui.run(client, store, settings, settings.load_request(), gateway)
    finally:
        store.close()


def _flags(context: typer.Context) -> dict[str, object]:
    """The settings on the command line; None, or no value at all, is not stated."""
    from app.settings import MQTT_NAMES, NAMES, SAMPLING_NAMES

    # Where no knobs are taken, a policy is something to compare.
    own = ("policy",) if "knobs" in context.params else ()
    names = {*NAMES, *SAMPLING_NAMES, *MQTT_NAMES, *own}
    return {
        name: None if value in ([], ()) else value
        for name, value in context.params.items()
        if name in names
    }


def _settings(context: typer.Context) -> Settings:
    from app.process import complain
    from app.settings import SettingsError, load_settings
    from engine import native
    from engine.errors import InvalidConfigError

    try:
        settings = load_settings(_flags(context), context.params["config"])
        native.check()
    except (SettingsError, InvalidConfigError) as error:
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    return settings


def _refuse_options(context: typer.Context) -> None:
    """Options before a command would be lost on it."""
    # By identity: 0 is a value, though it equals False.
    stated = [
        name
        for name, value in context.params.items()
        if value is not None and value is not False and value not in ([], ())
    ]
    if stated:
        command = context.invoked_subcommand
        raise typer.BadParameter(
            f"it stands before {command}; options of {command} come after it, see"
            f" `tui {command} --help`",
            param_hint=next(p.opts[0] for p in context.command.params if p.name == stated[0]),
        )


def main() -> None:
    argv.hide_password()
    app(prog_name="tui")
