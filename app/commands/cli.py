"""The command `tui`: the interface, or a plain program where there is no terminal."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

# Nothing slow is imported at the top, so that `--help` and `--version` answer at once: typer takes
# 0.05 s (0.3 s with rich for the help text), settings 0.15 s, textual 0.3 s, and torch takes
# seconds.
import typer
from typer import Argument, Option
from typer.core import TyperGroup

from app.bench.options import BenchOptions, Envelope, SimulateOptions
from app.commands import argv
from app.process import heap
from app.process.exits import ExitCode, leave
from app.settings import flags
from app.settings.groups import spread, stated
from app.system.versions import version

if TYPE_CHECKING:
    from app.gateway.gateways import Gateways
    from app.settings.settings import Settings
    from engine.api.client import EngineClient

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"batchdeck {version('batchdeck') or '(a checkout that is not installed)'}")
        raise typer.Exit


_EPILOG = (
    "Exit codes: 0 all answered, 1 something failed, 2 wrong usage or configuration, 3 no model, "
    "4 input, output or store cannot be used, 70 crashed, 129 and more: a signal (128 + its "
    "number). See docs/operating.md for all settings."
)


@app.callback(invoke_without_command=True, epilog=_EPILOG)
@spread
def _tui(
    *,
    context: typer.Context,
    model: flags.Model,
    engine: flags.Engine,
    sampling: flags.Sampling,
    http: flags.Http,
    broker: flags.Broker,
    interface: flags.Interface,
    each: Annotated[
        bool, Option("--each", help="Without a terminal: each line is a chat, all at once.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Without a terminal: print a JSON object per reply.")
    ] = False,
    demo: Annotated[
        bool,
        Option("--demo", help="Show a scripted crowd on the built-in model; any key takes over."),
    ] = False,
    common: flags.Common,
    _version: Annotated[
        bool,
        Option(
            "--version", is_eager=True, callback=_print_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Chat with a language model that runs here; watch and steer the batch.

    If standard input or output is not a terminal, each line of input is a turn of one conversation
    and the replies go to standard output.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    settings = _settings(model, engine, sampling, http, broker, interface, common)
    from app.commands import plain
    from app.process import process

    if demo:
        for name, value in stated(model, http, broker).items():
            if value is not None and name != "device":
                raise typer.BadParameter(
                    "the demonstration runs its own chats on the built-in model",
                    param_hint=f"--{name.replace('_', '-')}",
                )
        given = stated(engine, interface, common) | {"device": model.device}
        raise typer.Exit(_demonstrate(settings, given))
    if process.has_screen():
        if each or as_json:
            raise typer.BadParameter(
                "it works only where standard input or output is not a terminal",
                param_hint="--each" if each else "--json",
            )
        given = stated(model, engine, sampling, http, broker, interface, common)
        code = process.run(settings, lambda: _interface(given), stderr=False)
    else:
        if wrong := [
            n for n, value in stated(http, broker, interface).items() if value is not None
        ]:
            raise typer.BadParameter(
                "it works only in a terminal; without one, use `tui serve`",
                param_hint=f"--{wrong[0].replace('_', '-')}",
            )
        code = process.run(
            settings, lambda: plain.run(settings, each=each, as_json=as_json), stderr=True
        )
    raise typer.Exit(code)


class _Models(TyperGroup):
    """`tui models`: runs its commands. Any other argument shows the registry or one of its models,
    so a model with the name of a command cannot be shown."""

    LIST = "registry"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        shown = [name for name in self.commands if name != self.LIST]
        if not args or args[0] not in (*shown, *ctx.help_option_names):
            args = [self.LIST, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.commands[self.LIST].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


models_app = typer.Typer(cls=_Models, rich_markup_mode=None, subcommand_metavar="[NAME] | COMMAND")
app.add_typer(models_app, name="models")


@models_app.callback()
def _about_models() -> None:
    """List the registry's models by whether they fit here, or show what one needs; download, list
    and remove models."""


@models_app.command(_Models.LIST, hidden=True)
def _models(
    name: Annotated[
        str | None,
        Argument(
            help="A model: shows the memory that it needs, and the context that fits.",
            autocompletion=flags.COMPLETE_MODEL,
        ),
    ] = None,
    models: flags.Models = None,
    device: flags.Device = None,
    quantize: flags.Quantize = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, with the reasons.")] = False,
    config: flags.Config = None,
) -> None:
    """List the registry's models by whether they fit here, or show what one needs."""
    settings = _settings(models=models, device=device, quantize=quantize, config=config)
    from app.commands import models as listing
    from app.process import process

    raise typer.Exit(
        process.run(settings, lambda: listing.run(settings, name, as_json=as_json), stderr=True)
    )


@models_app.command("get")
def _get_model(
    name: Annotated[
        str,
        Argument(
            help="A model of the registry, or a hub id as owner/name.",
            autocompletion=flags.COMPLETE_MODEL,
        ),
    ],
    models: flags.Models = None,
    config: flags.Config = None,
) -> None:
    """Download a model; an interrupted download is resumed."""
    settings = _settings(models=models, config=config)
    from app.commands import downloads
    from app.process import process

    code = process.run(settings, lambda: downloads.run_get(settings, name), stderr=True)
    raise typer.Exit(code)


@models_app.command("list")
def _list_models(
    models: flags.Models = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    config: flags.Config = None,
) -> None:
    """List the downloaded models: size, time of last use and folder."""
    settings = _settings(models=models, config=config)
    from app.commands import downloads
    from app.process import process

    code = process.run(settings, lambda: downloads.run_list(settings, as_json=as_json), stderr=True)
    raise typer.Exit(code)


@models_app.command("remove")
def _remove_model(
    name: Annotated[str, Argument(help="A downloaded model.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask for confirmation.")] = False,
    models: flags.Models = None,
    config: flags.Config = None,
) -> None:
    """Remove a downloaded model, after confirmation."""
    settings = _settings(models=models, config=config)
    from app.commands import downloads
    from app.process import process

    code = process.run(
        settings, lambda: downloads.run_remove(settings, name, is_sure=yes), stderr=True
    )
    raise typer.Exit(code)


@app.command("export")
def _export(
    chat: Annotated[
        str | None, Argument(help="Title or id of a chat; without it, all chats.")
    ] = None,
    form: flags.Format = flags.FileFormat.JSON,
    config: flags.Config = None,
) -> None:
    """Print chats as JSON, from which they can be imported, or as Markdown."""
    settings = _settings(config=config)
    from app.commands import chats
    from app.process import process

    code = process.run(settings, lambda: chats.run_export(settings, chat, form), stderr=True)
    raise typer.Exit(code)


@app.command("import")
def _import(
    file: Annotated[Path, Argument(help="A JSON file of `tui export`; - is standard input.")],
    config: flags.Config = None,
) -> None:
    """Import the chats of a file into the store."""
    settings = _settings(config=config)
    from app.commands import chats
    from app.process import process

    raise typer.Exit(process.run(settings, lambda: chats.run_import(settings, file), stderr=True))


@app.command("doctor")
@spread
def _doctor(
    *,
    model: flags.Model,
    quantize: flags.Quantize = None,
    mqtt: flags.Mqtt = None,
    config: flags.Config = None,
) -> None:
    """Show versions, device, memory and files, and what is missing; with --model also how quantized
    weights would change its output."""
    from app.commands import doctor
    from app.process import process

    options = stated(model) | {"quantize": quantize, "mqtt": mqtt}
    settings, trouble = doctor.settings_or_default(options, config)
    is_named = model.model is not None and trouble is None
    raise typer.Exit(
        process.run(
            settings,
            lambda: doctor.run(settings, config, trouble, is_named=is_named),
            stderr=False,
        )
    )


@app.command("demo")
@spread
def _demo(
    *,
    device: flags.Device = None,
    policy: flags.Policy = None,
    knobs: flags.KnobTexts = None,
    common: flags.Common,
) -> None:
    """Show scripted chats on the built-in model in the interface; without a terminal, print them
    and a summary of the batch."""
    given = stated(common) | {"device": device, "policy": policy, "knobs": knobs}
    settings = _settings(common, device=device, policy=policy, knobs=knobs)
    raise typer.Exit(_demonstrate(settings, given))


@app.command("serve")
@spread
def _serve(
    *,
    server: flags.Server,
    model: flags.Model,
    engine: flags.Engine,
    sampling: flags.Sampling,
    common: flags.Common,
) -> None:
    """Serve over HTTP, MQTT or both, without a screen; SIGTERM drains."""
    settings = _settings(server, model, engine, sampling, common)
    from app.commands import serve
    from app.process import process

    # The reader of the service's log must see what happens.
    settings = settings.model_copy(update={"log_level": settings.log_level or "info"})
    raise typer.Exit(process.run(settings, lambda: serve.run(settings), stderr=True, drains=True))


@app.command("ask")
@spread
def _ask(*, client: flags.Client, options: flags.Ask, common: flags.Common) -> None:
    """Ask a server over MQTT, and write its reply as it comes."""
    settings = _settings(client, options.sampling, common)
    from app.commands import ask
    from app.process import process

    raise typer.Exit(process.run(settings, lambda: ask.run(settings, options), stderr=False))


@app.command("batch")
@spread
def _batch(
    *,
    file: Annotated[Path, Argument(help="Requests, one JSON object per line; see docs/http.md.")],
    output: Annotated[
        Path | None,
        Option("--output", metavar="FILE", help="File for the answers; default FILE.out.jsonl."),
    ] = None,
    at_once: Annotated[
        int, Option("--at-once", min=1, metavar="N", help="Most requests in the engine at once.")
    ] = 256,
    model: flags.Model,
    engine: flags.Engine,
    sampling: flags.Sampling,
    common: flags.Common,
) -> None:
    """Answer a file of requests in OpenAI's batch format; resumes where it stopped."""
    settings = _settings(model, engine, sampling, common)
    from app.commands import batch
    from app.process import process

    code = process.run(settings, lambda: batch.run(settings, file, output, at_once), stderr=True)
    raise typer.Exit(code)


@app.command("bench")
@spread
def _bench(
    *, model: flags.Model, envelope: Envelope, options: BenchOptions, common: flags.Common
) -> None:
    """Measure the engine under a workload, or compare several settings."""
    settings = _settings(model, envelope, common)
    from app.bench import command
    from app.process import process

    raise typer.Exit(process.run(settings, lambda: command.run(settings, options), stderr=True))


@app.command("simulate")
@spread
def _simulate(*, options: SimulateOptions, common: flags.Common) -> None:
    """Run the scheduler on a simulated device at rising request rates: throughput, latency,
    goodput."""
    settings = _settings(common)
    from app.bench import simulate
    from app.process import process

    raise typer.Exit(process.run(settings, lambda: simulate.run(options), stderr=True))


def _demonstrate(settings: Settings, options: dict[str, object]) -> int:
    """Run the demonstration; returns the exit code.

    Args:
        options: those of the command line, by name.
    """
    from app.commands import demo
    from app.process import process

    if process.has_screen():
        return process.run(settings, lambda: demo.show_crowd(options), stderr=False)
    return process.run(settings, lambda: demo.run(settings), stderr=True)


def _interface(options: dict[str, object]) -> int:
    """Run the interface; returns the exit code.

    Args:
        options: those of the command line, by name.
    """
    from app.process.serving import check_model, load_model
    from app.settings.layers import load_interface

    config = options.pop("config", None)
    assert config is None or isinstance(config, Path)
    settings, own = load_interface(options, config)
    # Typing errors are reported on the shell's own screen, before anything slow.
    check_model(settings.load_request())
    with heap.building():
        from app.screens import tui
        from app.store.store import Store
        from engine.serving.host import EngineHost

    store = Store(settings.store_file)
    client = EngineHost(load_model)
    try:
        with _gateways(settings, client) as running:
            load = settings.load_request()
            return tui.run(client, store, settings, load, running.mqtt, own, running.http)
    finally:
        store.close()


def _gateways(settings: Settings, client: EngineClient) -> AbstractContextManager[Gateways]:
    """The gateways that the settings enable; each takes 0.06 s or more to import."""
    from app.gateway.gateways import Gateways

    if not (settings.mqtt.is_on or settings.http.is_on):
        return nullcontext(Gateways())
    from app.commands.serve import gateways

    return gateways(settings, client)


def _settings(*groups: object, **more: object) -> Settings:
    """The settings from the options. If one of them is wrong, the program ends.

    Args:
        groups: groups of options.
        more: single options; `config` is one of all options.
    """
    # Pydantic would look for plugins in every installed package, which takes 15 ms of 100.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with heap.building():
        from app.process.process import complain
        from app.settings.layers import load_settings
        from app.settings.settings import SettingsError
        from engine import native
        from engine.api.errors import InvalidConfigError

    options = stated(*groups) | more
    config = options.pop("config")
    assert config is None or isinstance(config, Path)
    try:
        settings = load_settings(options, config)
        native.check()
    except (SettingsError, InvalidConfigError) as error:
        complain(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    return settings


def _refuse_options(context: typer.Context) -> None:
    """Refuse options that stand before a command, because they would have no effect on it."""
    # False is compared by identity: 0 is a value that was stated, though it equals False.
    stated = [
        name
        for name, value in context.params.items()
        if value is not None and value is not False and value not in ([], ())
    ]
    if stated:
        command = context.invoked_subcommand
        raise typer.BadParameter(
            f"it has no effect before {command}; options of {command} come after it, see"
            f" `tui {command} --help`",
            param_hint=next(p.opts[0] for p in context.command.params if p.name == stated[0]),
        )


def main() -> None:
    argv.hide_secrets()
    try:
        app(prog_name="tui")
    except SystemExit as ended:
        if isinstance(ended.code, int):
            leave(ended.code)
        raise
