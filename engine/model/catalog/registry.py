"""Registry: the models by name, and which of them can be loaded here."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.api.errors import EngineError, InvalidConfigError, ModelError
from engine.api.preset import Preset
from engine.api.sampling import SamplingParams
from engine.builtin import MODEL_DIR
from engine.model.files.checkpoint import CONFIG_FILE, GGUF_PART, GGUF_SUFFIX, has_weights
from engine.model.files.kept import cache_folder
from engine.model.files.reading import REGISTRY_BYTES, read_file

BUILTIN = "builtin"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WHEEL_START = "pypi:"
_WHEEL = re.compile(_WHEEL_START + r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)==([\w.!+-]+)")
# The keys of an entry for a wheel: their form, and their meaning for people.
_OF_WHEELS = {
    "file": (
        re.compile(r"(?:\w[\w .+-]*/)*\w[\w .+-]*\.gguf"),
        "the path of a GGUF file inside the wheel, such as package/model.gguf",
    ),
    "sha256": (
        re.compile(r"[0-9a-f]{64}"),
        "the SHA-256 of that file, 64 hexadecimal digits in lower case",
    ),
}
_PATH_STARTS = ("/", "./", "../", "~")

# How many names are suggested for a mistyped one, and their least similarity, by difflib's measure.
_CLOSE, _LIKENESS = 5, 0.6


class Availability(StrEnum):
    """Whether a model can be loaded on this machine as it is."""

    READY = "ready"
    DOWNLOAD = "needs download"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A GGUF file in a wheel of a package index.

    Attributes:
        project: the package, as its index spells it.
        version: the exact version.
        member: the path of the file inside the wheel.
        sha256: checksum of the file, 64 hexadecimal digits.
    """

    project: str
    version: str
    member: str
    sha256: str

    @property
    def source(self) -> str:
        return f"{_WHEEL_START}{self.project}=={self.version}"

    @property
    def folder(self) -> Path:
        """The folder in the program's cache for the file. Its name includes the checksum, so that a
        file in it was already checked.
        """
        name = f"{self.project.lower()}-{self.version}-{self.sha256[:12]}"
        return cache_folder() / "models" / name

    @property
    def path(self) -> Path:
        return self.folder / PurePosixPath(self.member).name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model of the registry, or one named by folder or hub id.

    Attributes:
        folder: its folder, or its GGUF file; None if it is downloaded.
        hub_id: its owner/name on the Hugging Face hub; None for other sources.
        wheel: its file in a package index; None for other sources.
        dtype: type of the weights, as torch names it; `auto` leaves the choice to the kind of
            device (`engine.model.machine.device.pick_dtype`).
        quantize: format for quantized weights, one of `engine.api.config.QUANTIZATIONS`.
        context_length: most tokens of one sequence; None for the model's own limit.
        sampling: recommended parameters by name (`engine.api.sampling.SamplingParams`).
        presets: settings that a chat can apply by name.
        memory_share: share of the free device memory; None leaves the choice to the kind of device.
        parameters: how many numbers the weights have, and cache_numbers: how many one token's keys
            and values have in all layers. They give a model's size before it is downloaded; None if
            not stated.
        begins_thinking: whether each reply to a chat begins as thinking that its prompt does not
            open, unless the request sets the template's argument `enable_thinking` to false.
    """

    name: str
    folder: Path | None = None
    hub_id: str | None = None
    wheel: WheelFile | None = None
    dtype: str = "auto"
    quantize: str = "none"
    context_length: int | None = None
    sampling: Mapping[str, object] = field(default_factory=dict)
    presets: tuple[Preset, ...] = ()
    memory_share: float | None = None
    parameters: int | None = None
    cache_numbers: int | None = None
    begins_thinking: bool = False

    @property
    def source(self) -> str:
        """The hub id, the wheel or the folder, for people."""
        return self.hub_id or (self.wheel.source if self.wheel else str(self.folder))

    @property
    def is_downloaded(self) -> bool:
        """Whether the model comes from a hub or an index; otherwise its folder is the user's, or
        this package's.
        """
        return self.folder is None

    @property
    def packed_folder(self) -> Path:
        """The folder in the program's cache for its weights (`engine.model.loading.packed`)."""
        name = hashlib.sha256(self.source.encode(errors="surrogateescape")).hexdigest()[:16]
        return cache_folder() / "packed" / name

    def local_folder(self) -> Path | None:
        """The folder with configuration and weights, or the GGUF file, if it is on this machine."""
        if self.wheel is not None:
            folder: Path | None = self.wheel.path
        else:
            folder = self.folder if self.hub_id is None else _cached_snapshot(self.hub_id)
        return folder if folder is not None and has_weights(folder) else None

    def availability(self) -> Availability:
        if self.local_folder() is not None:
            return Availability.READY
        return Availability.DOWNLOAD if self.is_downloaded else Availability.MISSING


class Registry:
    """The entries of a models.toml, in its order."""

    def __init__(self, entries: Mapping[str, ModelEntry], path: Path) -> None:
        self.entries = dict(entries)
        self.path = path

    @staticmethod
    def read(path: str | Path | None = None) -> Registry:
        """Read a registry; None is the built-in one.

        Raises:
            InvalidConfigError: the file is missing, not a regular file of a plausible size, not
                TOML, or a table has a wrong key or value.
        """
        path = _shipped() if path is None else Path(path).expanduser()
        try:
            tables = tomllib.loads(read_file(path, REGISTRY_BYTES).decode())
        except FileNotFoundError as error:
            raise InvalidConfigError(f"{path}: {error.strerror}", "models_file") from None
        except ModelError as error:
            raise InvalidConfigError(error.message, "models_file") from None
        except UnicodeDecodeError as error:
            raise InvalidConfigError(
                f"{path} is not UTF-8: {error.reason}", "models_file"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfigError(f"{path} is no TOML: {error}", "models_file") from None
        except RecursionError:
            raise InvalidConfigError(f"{path} is nested too deeply", "models_file") from None
        return Registry({n: _entry(n, table, path) for n, table in tables.items()}, path)

    def find(self, model: str) -> ModelEntry:
        """Find the entry for a name, a folder, a GGUF file or a hub id.

        A hub id or a wheel that is the source of an entry finds that entry.

        Raises:
            ModelError: it is none of these.
        """
        if model in self.entries:
            return self.entries[model]
        folder = Path(model).expanduser()
        # `Path.is_dir` would raise below a folder that this user may not enter.
        if os.path.isdir(folder):
            return ModelEntry(name=folder.resolve().name, folder=folder.resolve())
        if folder.suffix == GGUF_SUFFIX and os.path.isfile(folder):
            # Links are not followed, because their targets may not have readable names.
            part = GGUF_PART.fullmatch(folder.name)
            name = folder.stem if part is None else part["stem"]
            return ModelEntry(name=name, folder=folder.absolute())
        if model.startswith(_PATH_STARTS):
            try:
                folder.stat()
            except PermissionError as error:
                raise ModelError(f"{model} cannot be read: {error.strerror}", "model") from None
            except (OSError, ValueError):
                pass
            raise ModelError(f"folder {model} does not exist", "model")
        for entry in self.entries.values():
            if entry.is_downloaded and entry.source == model:
                return entry
        if _HUB_ID.fullmatch(model):
            return ModelEntry(name=model.rpartition("/")[2], hub_id=model)
        raise ModelError(
            f"model {model!r} is unknown; {self._names_close_to(model)}, and a folder or a hub id "
            "as owner/name is allowed",
            "model",
        )

    def _names_close_to(self, model: str) -> str:
        """A clause with the names closest to an unknown one; the three nearest if none is close."""
        wanted = model.lower()
        close = [name for name in self.entries if name.startswith(wanted)]
        close += get_close_matches(wanted, self.entries, _CLOSE, _LIKENESS)
        close = list(dict.fromkeys(close))[:_CLOSE]
        if not self.entries:
            return f"{self.path} has no models"
        said = "close to it are"
        if not close:
            said, close = "nearest to it are", get_close_matches(wanted, self.entries, 3, 0.0)
        return f"{said} {', '.join(close)}, of the {len(self.entries)} of {self.path}"


class _Preset(BaseModel):
    """A table of a model's presets."""

    model_config = ConfigDict(extra="forbid", strict=True)

    system: str = ""
    sampling: dict[str, object] = {}


class _Table(BaseModel):
    """A table of models.toml."""

    model_config = ConfigDict(extra="forbid", strict=True)

    source: Annotated[str, Field(min_length=1)]
    file: str | None = None
    sha256: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    quantize: Literal["none", "int8", "int4"] = "none"
    context_length: Annotated[int, Field(ge=1)] | None = None
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = None
    parameters: Annotated[int, Field(ge=1)] | None = None
    cache_numbers: Annotated[int, Field(ge=1)] | None = None
    begins_thinking: bool = False
    sampling: dict[str, object] = {}
    presets: dict[str, _Preset] = {}


def _shipped() -> Path:
    """The built-in registry. In a wheel it is beside this module, in a checkout at the top."""
    here = Path(__file__).resolve()
    installed = here.with_name("models.toml")
    return installed if installed.is_file() else here.parents[3] / "models.toml"


def _entry(name: str, values: object, path: Path) -> ModelEntry:
    where = f"{path}: [{name}]"
    if not isinstance(values, dict):
        raise InvalidConfigError(
            f"{path}: {name} is {values!r}; only tables are allowed at the top", "models_file"
        )
    try:
        table = _Table.model_validate(values)
        SamplingParams().override(table.sampling)
    except ValidationError as error:
        raise InvalidConfigError(f"{where} {_first_fault(error)}", "models_file") from None
    except EngineError as error:
        raise InvalidConfigError(f"{where} sampling: {error.message}", "models_file") from None
    for preset, stated in table.presets.items():
        try:
            SamplingParams().override(stated.sampling)
        except EngineError as error:
            raise InvalidConfigError(
                f"{where} presets.{preset}.sampling: {error.message}", "models_file"
            ) from None
    folder, hub_id, wheel = None, None, None
    for key in _OF_WHEELS:
        if getattr(table, key) is not None and not table.source.startswith(_WHEEL_START):
            raise InvalidConfigError(
                f"{where} has the key {key}, which is for a source {_WHEEL_START}NAME==VERSION "
                f"only, and its source is {table.source!r}",
                "models_file",
            )
    if table.source.startswith(_WHEEL_START):
        wheel = _wheel(table, where)
    elif table.source == BUILTIN:
        folder = MODEL_DIR
    elif table.source.startswith(_PATH_STARTS):
        folder = path.parent / Path(table.source).expanduser()
    elif _HUB_ID.fullmatch(table.source):
        hub_id = table.source
    else:
        raise InvalidConfigError(
            f"{where} source is {table.source!r}; allowed are {BUILTIN!r}, a folder starting with "
            f"{' '.join(_PATH_STARTS)}, a hub id as owner/name, and a package with its version as "
            f"{_WHEEL_START}NAME==VERSION",
            "models_file",
        )
    return ModelEntry(
        name=name,
        folder=folder,
        hub_id=hub_id,
        wheel=wheel,
        dtype=table.dtype,
        quantize=table.quantize,
        context_length=table.context_length,
        sampling=table.sampling,
        presets=tuple(Preset(n, p.system, p.sampling) for n, p in table.presets.items()),
        memory_share=table.memory_share,
        parameters=table.parameters,
        cache_numbers=table.cache_numbers,
        begins_thinking=table.begins_thinking,
    )


def _wheel(table: _Table, where: str) -> WheelFile:
    """The file of a package index that an entry names.

    Raises:
        InvalidConfigError: a part of it is missing or wrong.
    """
    source = _WHEEL.fullmatch(table.source)
    try:
        version = str(Version(source[2])) if source else ""
    except InvalidVersion:
        source = None
    if source is None:
        raise InvalidConfigError(
            f"{where} source is {table.source!r}; a package is named with one exact version, as "
            f"{_WHEEL_START}NAME==VERSION",
            "models_file",
        )
    for key, (form, meaning) in _OF_WHEELS.items():
        value = getattr(table, key)
        if value is None:
            raise InvalidConfigError(f"{where} lacks the key {key}, {meaning}", "models_file")
        if not form.fullmatch(value):
            raise InvalidConfigError(
                f"{where} {key} is {value!r}; it must be {meaning}", "models_file"
            )
    assert table.file is not None  # guaranteed by the loop
    assert table.sha256 is not None
    return WheelFile(project=source[1], version=version, member=table.file, sha256=table.sha256)


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        table = _Table if len(fault["loc"]) == 1 else _Preset
        return f"has the unknown key {key}; allowed are {', '.join(table.model_fields)}"
    if fault["type"] == "missing":
        return f"lacks the key {key}"
    requirement = fault["msg"].removeprefix("Input should be ")
    return f"{key} is {fault['input']!r}; it must be {requirement}"


def _cached_snapshot(hub_id: str) -> Path | None:
    """The snapshot of a hub model's main branch in the local cache, found without the network."""
    # Imported here, because it takes 0.2 s and only entries from the hub need it.
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, CONFIG_FILE)
    return Path(os.fspath(config)).parent if isinstance(config, (str, os.PathLike)) else None
