"""The command `tui`: the interface, or a plain program where there is no terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

# Nothing of weight at the top, for `--help` and `--version` answer at once: typer takes 0.05 s,
# with rich for the help text 0.3 s, settings 0.15 s, textual 0.3 s, torch seconds.
import typer

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

# Parameters that are no setting.
_OF_COMMAND = ("config", "_version", "each", "as_json")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batchdeck {version('batchdeck') or '(a checkout that is not installed)'}")
        raise typer.Exit


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


@app.callback(invoke_without_command=True, epilog="See docs/operating.md for all settings.")
def _tui(
    context: typer.Context,
    model: Model = None,
    models: Models = None,
    device: Device = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="auto, float32, bfloat16 or float16."),
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of the KV cache, such as 2GiB.")
    ] = None,
    num_blocks: Annotated[
        int | None, typer.Option(metavar="N", help="Its blocks of 16 tokens, instead.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of a conversation.")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(metavar="N", help="Most sequences in the batch.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens in a step.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System prompt of new conversations.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Most tokens of a reply.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(metavar="X", help="0 always takes the most likely token.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="X", help="Nucleus of this probability.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="Only the N most likely tokens; 0 is all.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Makes sampling repeatable.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Ends a reply; may be given several times."),
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Plain program: a line is a conversation, all at once.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Plain program: one JSON object for each reply.")
    ] = False,
    log_level: LogLevel = None,
    config: Config = None,
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

    if plain.is_terminal(sys.stdin) and plain.is_terminal(sys.stdout):
        if each or as_json:
            raise typer.BadParameter(
                "it is for the plain program, where standard input or output is no terminal",
                param_hint="--each" if each else "--json",
            )
        code = process.run(settings, lambda: _interface(settings), stderr=False)
    else:
        code = process.run(
            settings, lambda: plain.run(settings, each=each, as_json=as_json), stderr=True
        )
    raise typer.Exit(code)


@app.command("models")
def _models(
    context: typer.Context,
    models: Models = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with the reasons.")] = False,
    config: Config = None,
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
    model: Model = None,
    models: Models = None,
    device: Device = None,
    config: Config = None,
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
    device: Device = None,
    log_level: LogLevel = None,
    config: Config = None,
) -> None:
    """Hold eight scripted chats at once on the built-in model and show what the batch did."""
    settings = _settings(context)
    from app import demo, process

    raise typer.Exit(process.run(settings, lambda: demo.run(settings), stderr=True))


def _interface(settings: Settings) -> int:
    from app import tui
    from app.serving import load_model
    from app.store import Store
    from engine.host import EngineHost

    store = Store(settings.store_file)
    try:
        return tui.run(EngineHost(load_model), store, settings, settings.load_request())
    finally:
        store.close()


def _flags(context: typer.Context) -> dict[str, object]:
    """The settings on the command line; None, or no value at all, is not stated."""
    return {
        name: None if value in ([], ()) else value
        for name, value in context.params.items()
        if name not in _OF_COMMAND
    }


def _settings(context: typer.Context) -> Settings:
    from app.process import complain
    from app.settings import SettingsError, load_settings

    try:
        return load_settings(_flags(context), context.params["config"])
    except SettingsError as error:
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from None


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
            param_hint="--" + stated[0].removeprefix("as_").replace("_", "-"),
        )


def main() -> None:
    app(prog_name="tui")
