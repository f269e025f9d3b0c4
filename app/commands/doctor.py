"""Doctor: the parts of this installation and this machine, and how to get the missing ones."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from app.commands.models import Place, examine
from app.gateway.mqtt.client import AskClient, AskError
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import AddressError, BrokerAddress
from app.gateway.mqtt.transport.link import LinkState
from app.process.columns import align
from app.process.console import loading_bar, progress_bar
from app.process.exits import ExitCode
from app.process.process import print_text
from app.settings.layers import config_file, load_settings, unknown_variables
from app.settings.own_file import OwnFile
from app.settings.settings import Settings, SettingsError
from app.store.word_index import has_fts5
from app.system.machine import (
    Memory,
    cpu_features,
    gpu_memory,
    host_memory,
    memory_of,
    num_cores,
    visible_memory,
    why_not_quantized,
)
from app.system.versions import PACKAGES, version
from engine.api.errors import EngineError, cause_of
from engine.model.catalog.registry import Availability, Registry
from engine.model.files.kept import cache_folder
from engine.model.files.size_text import format_bytes
from engine.model.machine.driver import VARIABLE, visible_gpus
from engine.native import kernels, why_not
from widgets.harmless import harmless
from widgets.off_path import cost, kind
from widgets.quantization import in_full as quantized_in_full
from widgets.quantization import loss_in_full

log = logging.getLogger(__name__)

BROKER_SECONDS = 5.0
COMPILER_SECONDS = 20.0
_FAST_PATH = "Fast path"
_QUANTIZED = "Quantized weights"
CPU_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/cpu"
INSTALL = {"torch": CPU_TORCH, "batchdeck": "make setup"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        trouble: one sentence about the fault and its fix. Empty if all is well.
        is_needed: whether batchdeck, as configured, cannot work while this is wrong.
    """

    name: str
    value: str
    trouble: str = ""
    is_needed: bool = True


Report = dict[str, list[Finding]]


def settings_or_default(
    flags: Mapping[str, object], config: Path | None
) -> tuple[Settings, SettingsError | None]:
    """The settings in force. If they are wrong, the defaults, and the error."""
    try:
        return load_settings(flags, config), None
    except SettingsError as error:
        return Settings(), error


def run(
    settings: Settings,
    config: Path | None,
    trouble: SettingsError | None,
    *,
    is_named: bool = False,
) -> int:
    """Examine, print, and return the exit code.

    Args:
        config: the configuration file named on the command line; None if none was.
        trouble: the error in the settings; None if there is none.
        is_named: whether the command line names the model. Then it is loaded, to find the
            operations that our kernels do not compute, and, if the processor can do that, the
            effect of quantizing its weights.
    """
    report: Report = {
        "Versions": list(_versions()),
        "Machine": list(_machine()),
        "Model": [*_torch(settings), _model(settings)],
        "Terminal": list(_terminal()),
        **({"MQTT": list(_mqtt(settings.mqtt))} if settings.mqtt.is_on else {}),
        "Files": list(_files(settings, config, trouble)),
    }
    print_text(_sections(report))
    is_ready = is_named and _is_ready(report)
    if is_ready:
        print_text(f"{_FAST_PATH} (the model is loaded, which takes a while)")
        report[_FAST_PATH] = list(_fast_path(settings))
        print_text(_rows(report[_FAST_PATH]))
    if is_ready and _can_quantize(settings):
        print_text(f"{_QUANTIZED} (the model is loaded for each width, which takes a while)")
        report[_QUANTIZED] = list(_losses(settings))
        print_text(_rows(report[_QUANTIZED]))
    print_text(_troubles(report))
    needed = [f for findings in report.values() for f in findings if f.trouble and f.is_needed]
    return ExitCode.FAILED if needed else ExitCode.OK


def _sections(report: Report) -> str:
    return "\n".join(f"{title}\n{_rows(findings)}" for title, findings in report.items())


def _rows(findings: list[Finding]) -> str:
    rows = align([(finding.name, finding.value) for finding in findings])
    return harmless("\n".join(f"  {row}" for row in rows))


def _troubles(report: Report) -> str:
    lines: list[str] = []
    troubles = [f for findings in report.values() for f in findings if f.trouble]
    for title, is_needed in (("Missing", True), ("Could be better", False)):
        listed = [f"  {f.name}: {f.trouble}" for f in troubles if f.is_needed is is_needed]
        lines += [title, *listed] if listed else []
    return harmless("\n".join([*lines, *([] if troubles else ["Nothing is missing."])]))


def _versions() -> Iterator[Finding]:
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield _sqlite()
    for package in PACKAGES:
        installed = version(package)
        how = INSTALL.get(package, f"pip install {package}")
        trouble = "" if installed else f"it is not installed: {how}"
        is_needed = package != "batchdeck"  # a checkout runs without being installed
        yield Finding(package, installed or "not installed", trouble, is_needed)


def _sqlite() -> Finding:
    trouble = "chats are found by their titles alone: this Python's SQLite has no FTS5"
    return Finding("SQLite", sqlite3.sqlite_version, "" if has_fts5() else trouble, is_needed=False)


def _machine() -> Iterator[Finding]:
    yield Finding("system", platform.platform())
    features = cpu_features()
    yield Finding("processor", f"{platform.machine()}, {num_cores()} cores for this program")
    known = (
        "not reported by this system" if features is None else " ".join(features) or "none of note"
    )
    yield Finding("instructions", known)
    yield _kernels()
    memory = host_memory()
    yield Finding("memory", f"{format_bytes(memory.free)} of {format_bytes(memory.total)} free")
    yield from _gpus()
    if visible_memory():
        yield from _gpu_kernels()


def _gpus() -> Iterator[Finding]:
    """Each GPU under the name that `--device` accepts, as far as torch sees it; then the others, in
    the driver's order."""
    gpus = gpu_memory()
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    seen = _seen_by_torch()
    for number, (uuid, name) in enumerate(seen.items()):
        known = f"{name}, {uuid}, not reported by NVIDIA's driver"
        shown = _describe_gpu(by_uuid[uuid]) if uuid in by_uuid else known
        yield Finding(f"cuda:{number}", shown)
    visible = visible_gpus([gpu.uuid for gpu in gpus], os.environ)
    for place, gpu in enumerate(gpus):
        if gpu.uuid in seen:
            continue
        is_hidden = VARIABLE in os.environ and (bool(seen) or place not in visible)
        why = f", hidden: {VARIABLE} is {os.environ[VARIABLE]!r}" if is_hidden else ""
        yield Finding("GPU", _describe_gpu(gpu) + why)
    if not gpus and not seen:
        yield Finding("GPU", "no NVIDIA driver, or no GPU that it shows")


def _describe_gpu(gpu: Memory) -> str:
    memory = f"{format_bytes(gpu.free)} of {format_bytes(gpu.total)} free"
    return ", ".join(part for part in (gpu.name, memory, gpu.uuid) if part)


def _gpu_kernels() -> Iterator[Finding]:
    """The requirements of Triton, which compiles each of our kernels at its first use."""
    without = "torch alone computes on the GPU, slower:"
    if find_spec("triton") is None:
        trouble = f"{without} it is not installed: pip install triton"
        yield Finding("Triton", "not installed", trouble, is_needed=False)
        return
    # The same search as Triton's.
    stated = os.environ.get("CC")
    compiler = stated or shutil.which("gcc") or shutil.which("clang")
    reason = (
        _why_not_compiled(compiler) if compiler else "there is none; install gcc, or name it in CC"
    )
    trouble = f"{without} {reason}" if reason else ""
    yield Finding("C compiler", compiler or "none", trouble, is_needed=False)
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
    trouble = f"{without} {cache} cannot be written; set TRITON_CACHE_DIR to a folder that can"
    is_writable = _is_writable(cache, is_folder=True)
    yield Finding("kernel cache", str(cache), "" if is_writable else trouble, is_needed=False)


def _why_not_compiled(compiler: str) -> str:
    """Why a C compiler cannot compile code that includes Python's headers, and the remedy; empty if
    it can."""
    scheme = sysconfig.get_default_scheme()
    # Debian keeps headers where those of other packages are, and not below /usr/local.
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    include = sysconfig.get_path("include", scheme)
    try:
        done = subprocess.run(
            [compiler, "-fsyntax-only", "-x", "c", f"-I{include}", "-"],
            input="#include <Python.h>\n",
            capture_output=True,
            text=True,
            timeout=COMPILER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{compiler} does not run ({cause_of(error)}); install gcc, or name it in CC"
    if done.returncode == 0:
        return ""
    said = next((line for line in done.stderr.splitlines() if "error" in line), "it failed")
    return (
        f"{compiler} does not compile what includes Python.h ({said}); install the headers of C "
        f"and of Python (libc6-dev and python3-dev in Debian), which belong to {include}"
    )


def _seen_by_torch() -> dict[str, str]:
    """The UUIDs and names of cuda:0, cuda:1 and so on. Empty if torch is unusable, and `_torch`
    says why."""
    try:
        import torch

        from engine.model.machine.device import gpu_uuid
    except Exception:  # as in `_torch`
        return {}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", number) for number in range(count)]
    return {gpu_uuid(device): torch.cuda.get_device_name(device) for device in devices}


def _kernels() -> Finding:
    try:
        native = kernels()
    except EngineError as error:
        return Finding("kernels", "none", error.message)
    if native is None:
        reason = f"models run slower on the processor without them: {why_not()}"
        return Finding("kernels", "none", reason, is_needed=False)
    level, threads = native.level(), native.threads()
    value = f"{level}, {threads} {'thread' if threads == 1 else 'threads'}"
    others = [other for other in native.levels() if other != level]
    if others:
        verb = "is" if len(others) == 1 else "are"
        value += f" ({' and '.join(others)} {verb} here too)"
    return Finding("kernels", value)


def _torch(settings: Settings) -> Iterator[Finding]:
    """Describe the device and the types that a load would choose."""
    try:
        import torch

        from engine.model.machine.device import pick_auto, pick_device, pick_dtype
    except Exception as error:  # an extension that does not fit the system may raise anything
        reason = (
            f"it cannot be imported ({type(error).__name__}: {error}); reinstall it: {CPU_TORCH}"
        )
        yield Finding("torch", "cannot be imported", reason)
        return
    try:
        device = pick_device(settings.device)
    except EngineError as error:
        yield Finding("device", str(settings.device), error.message)
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "this processor"
    reason = pick_auto()[1] if settings.device in (None, "auto") else ""
    trouble = f"the processor computes, although there is a GPU: {reason}" if reason else ""
    yield Finding("device", f"{device}, {name}", trouble, is_needed=False)
    dtype = str(pick_dtype(None, "auto", "bfloat16", device)).removeprefix("torch.")
    yield Finding("bfloat16 models", f"run in {dtype}")


def _model(settings: Settings) -> Finding:
    wanted = settings.load_request().model
    try:
        place = Place(memory=memory_of(settings.device), settings=settings)
        found = examine(Registry.read(settings.models).find(wanted), place)
    except EngineError as error:
        return Finding("model", wanted, error.message)
    if found.loads_here:
        return Finding("model", f"{found.name}, {found.source}")
    is_needed = found.availability is not Availability.DOWNLOAD
    return Finding("model", f"{found.name}, {found.source}", found.reason, is_needed)


def _is_ready(report: Report) -> bool:
    """Whether the model can be loaded, as far as that was examined."""
    libraries, model = report["Versions"], report["Model"]
    needed = [finding for finding in (*libraries, *model) if finding.is_needed]
    return not any(finding.trouble for finding in (*needed, model[-1]))


def _can_quantize(settings: Settings) -> bool:
    """Whether weights can be quantized here; if not, and quantization is wanted, `_model` has said
    why."""
    from engine.model.machine.device import pick_device

    try:
        return not why_not_quantized(str(pick_device(settings.device)))
    except EngineError:
        return False


def _fast_path(settings: Settings) -> Iterator[Finding]:
    """The operations of the model that our kernels do not compute with these settings."""
    from engine.model.loading.loader import load_model

    request = settings.load_request()
    entry = Registry.read(settings.models).find(request.model)
    try:
        with progress_bar() as progress, loading_bar(progress, entry.name) as tell:
            loaded = load_model(request, tell)
    except EngineError as error:
        yield Finding("model", "not loaded", error.message)
        return
    loaded.close()
    card = loaded.card
    if shown := quantized_in_full(card):
        yield Finding("quantized", shown)
    slower = "it is slower than it could be: "
    if card.off_kernels:
        value = "none of its operations"
        yield Finding("kernels compute", value, slower + card.off_kernels, is_needed=False)
    elif not card.off_path:
        yield Finding("kernels compute", "all of its operations")
    for one in card.off_path:
        yield Finding(kind(one), f"by torch, {cost(one)}", slower + one.reason, is_needed=False)


def _losses(settings: Settings) -> Iterator[Finding]:
    """The effect of quantizing the model's weights, for each requested width."""
    from engine.model.loading.losses import measure_losses

    request = settings.load_request()
    entry = Registry.read(settings.models).find(request.model)
    try:
        with progress_bar() as progress, loading_bar(progress, entry.name) as tell:
            losses = measure_losses(entry, request, tell)
    except EngineError as error:
        is_wanted = (request.quantize or entry.quantize) != "none"
        yield Finding("quantized", "not measured", error.message, is_wanted)
        return
    for width, loss in losses.items():
        yield Finding(width, loss_in_full(loss))


def _terminal() -> Iterator[Finding]:
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout and sys.stdout.isatty()):
        yield Finding("terminal", "none here: tui is a plain program on pipes and files")
        return
    size = shutil.get_terminal_size()
    kind = os.environ.get("TERM", "")
    small = size.columns < 80 or size.lines < 24
    yield Finding(
        "size",
        f"{size.columns} x {size.lines}",
        "the interface needs at least 80 x 24; enlarge the window" if small else "",
        is_needed=False,
    )
    yield Finding(
        "colours",
        _colours(kind),
        "TERM says that this terminal can only print; set TERM to its real type"
        if kind in ("", "dumb")
        else "",
        is_needed=False,
    )
    encoding = (sys.stdout.encoding or "").lower()
    is_unicode = encoding.replace("-", "") == "utf8"
    yield Finding(
        "characters",
        encoding,
        "" if is_unicode else "set a UTF-8 locale, or ascii = true in the configuration",
        is_needed=False,
    )


def _colours(kind: str) -> str:
    if os.environ.get("NO_COLOR"):
        return "none, as NO_COLOR asks"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return f"16 million ({kind})"
    return f"256 ({kind})" if "256" in kind else f"8 or 16 ({kind or 'TERM is not set'})"


def _mqtt(settings: MqttSettings) -> Iterator[Finding]:
    if settings.embedded_broker:
        yield Finding("broker", "embedded, started with the server")
        return
    try:
        address = settings.address()
    except AddressError as error:
        yield Finding("broker", str(settings.url), str(error))
        return
    ca = str(settings.ca_file or "the system's certificates")
    yield Finding("encryption", f"TLS, checked by {ca}" if address.is_tls else "none")
    try:
        state = asyncio.run(_connect(settings, address))
    except AskError as error:
        yield Finding("broker", str(address), str(error))
    else:
        yield Finding("broker", f"{address}, answers by MQTT {state.protocol}")


async def _connect(settings: MqttSettings, address: BrokerAddress) -> LinkState:
    async with AskClient(settings, address, log.info) as client:
        return await client.connected(BROKER_SECONDS)


def _files(
    settings: Settings, config: Path | None, trouble: SettingsError | None
) -> Iterator[Finding]:
    path = config_file(config)
    there = str(path) if os.path.exists(path) else f"{path} (not there, and not needed)"
    yield Finding("configuration", there, " ".join(str(trouble).splitlines()) if trouble else "")
    for name in unknown_variables():
        yield Finding(name, "ignored", "no setting is read from it", is_needed=False)
    for name, file in (("store", settings.store_file), ("log", settings.log_file)):
        writable = _is_writable(file)
        value = str(file) if writable else f"{file} (cannot be written)"
        how = "data_dir" if name == "store" else "log_file"
        reason = "" if writable else f"{file} cannot be written; set {how} to another place"
        yield Finding(name, value, reason, is_needed=name == "store")
    cache = cache_folder()
    if _is_writable(cache, is_folder=True):
        yield Finding("cache", str(cache))
    else:
        lack = (
            "each start packs and checks the model again, and models of package indices cannot be "
            f"downloaded: {cache} cannot be written; set XDG_CACHE_HOME to another place"
        )
        yield Finding("cache", f"{cache} (cannot be written)", lack, is_needed=False)
    own = OwnFile(settings.data_dir).path
    there = str(own) if os.path.exists(own) else f"{own} (not there, and not needed)"
    yield Finding("interface", there)
    yield Finding("crash reports", str(settings.crash_dir))


def _is_writable(file: Path, *, is_folder: bool = False) -> bool:
    """Whether a file can be written, or created in the nearest existing folder; False below one
    that cannot be entered.

    Args:
        is_folder: whether the path is a folder to write to.
    """
    place = next(place for place in (file, *file.parents) if os.path.exists(place))
    return os.access(place, os.W_OK) and (place.is_dir() or (place == file and not is_folder))
