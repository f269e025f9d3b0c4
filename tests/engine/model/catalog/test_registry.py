"""models.toml: what ships, what is refused, and what a name stands for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from engine.api.errors import InvalidConfigError, ModelError
from engine.api.preset import Preset
from engine.api.sampling import SamplingParams
from engine.builtin import MODEL_DIR
from engine.model.catalog import registry
from engine.model.catalog.registry import Availability, Registry
from engine.model.files.checkpoint import CONFIG_FILE, INDEX_FILE, SINGLE_FILE

ROOT = Path(__file__).resolve().parents[4]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def read(folder: Path, text: str) -> Registry:
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    return Registry.read(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        read(folder, text)
    assert caught.value.param == "models_file"
    return caught.value.message


def put_in_cache(cache: Path, hub_id: str, *files: str) -> Path:
    """The hub client's layout of a downloaded model."""
    repo = cache / f"models--{hub_id.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for name in files:
        (snapshot / name).write_text('{"weight_map": {"w": "model-00001-of-00001.safetensors"}}')
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_ships_is_complete() -> None:
    shipped = Registry.read()
    assert shipped.path == ROOT / "models.toml"
    assert next(iter(shipped.entries)) == "builtin"
    assert shipped.entries["builtin"].folder == MODEL_DIR
    others = [entry for name, entry in shipped.entries.items() if name != "builtin"]
    assert len({entry.source for entry in others}) == len(others) >= 17
    for entry in others:
        assert entry.is_downloaded
        assert entry.dtype == "bfloat16"
        assert entry.context_length is not None
        assert entry.parameters is not None


def test_the_wheel_carries_it_where_it_is_looked_for() -> None:
    (folder,) = re.findall(
        r"install\(FILES models.toml DESTINATION (\S+)\)", (ROOT / "CMakeLists.txt").read_text()
    )
    assert Path(registry.__file__).with_name("models.toml") == ROOT / folder / "models.toml"


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys; from engine.model.catalog.registry import Registry\n"
        "[entry.availability() for entry in Registry.read().entries.values()]\n"
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_all_keys(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    entry = read(
        tmp_path,
        """
        ["my.model"]
        source = "./mine"
        dtype = "float16"
        quantize = "int4"
        context_length = 100
        memory_share = 0.5
        parameters = 1_000
        cache_numbers = 20
        begins_thinking = true
        sampling = { temperature = 0.2, stop = ["\\n"] }
        """,
    ).find("my.model")
    assert entry.folder == tmp_path / "mine"
    assert (entry.dtype, entry.context_length, entry.memory_share) == ("float16", 100, 0.5)
    assert entry.quantize == "int4"
    assert (entry.parameters, entry.cache_numbers) == (1000, 20)
    assert entry.begins_thinking
    params = SamplingParams().override(entry.sampling)
    assert (params.temperature, params.stop) == (0.2, ("\n",))


def test_broken_toml_gives_file_and_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, '[a]\nsource = "builtin"\ndtype =\n')
    assert str(tmp_path / "models.toml") in message
    assert "line 3" in message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"none\.toml: No such file"):
        Registry.read(tmp_path / "none.toml")


def test_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_bytes(b'["\xff"]\n')
    with pytest.raises(InvalidConfigError, match=r"models\.toml is not UTF-8"):
        Registry.read(tmp_path / "models.toml")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "models.toml")
    path = str(tmp_path / "models.toml")
    code = f"from engine.model.catalog.registry import Registry; Registry.read({path!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "models.toml is a FIFO; only regular files are read" in done.stderr


def test_a_file_of_another_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(InvalidConfigError) as caught:
        Registry.read(path)
    assert caught.value.message == f"{path} has 1024.00 GiB; at most 1.0 MiB are allowed"
    assert caught.value.param == "models_file"


def test_nested_too_deeply(tmp_path: Path) -> None:
    message = refusal(tmp_path, "a = " + "[" * 100_000)
    assert message == f"{tmp_path / 'models.toml'} is nested too deeply"


def test_control_characters_of_a_name_are_escaped(tmp_path: Path) -> None:
    message = refusal(tmp_path, '["\\u001b[31mred"]\nsource = 1\n')
    assert message == (
        rf"{tmp_path / 'models.toml'}: [\x1b[31mred] source is 1; it must be a valid string"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "dytpe = 'auto'\nsource = 'builtin'",
            "has the unknown key dytpe; allowed are source, file, sha256, dtype, quantize, "
            "context_length, memory_share, parameters, cache_numbers, begins_thinking, sampling, "
            "presets",
        ),
        ("dtype = 'auto'", "lacks the key source"),
        (
            "source = 'builtin'\nquantize = 'int2'",
            "quantize is 'int2'; it must be 'none', 'int8' or 'int4'",
        ),
        (
            "source = 'builtin'\ndtype = 'bf16'",
            "dtype is 'bf16'; it must be 'auto', 'float32', 'bfloat16' or 'float16'",
        ),
        (
            "source = 'builtin'\ncontext_length = 0",
            "context_length is 0; it must be greater than or equal to 1",
        ),
        (
            "source = 'builtin'\ncontext_length = '4k'",
            "context_length is '4k'; it must be a valid integer",
        ),
        (
            "source = 'builtin'\nmemory_share = 1.5",
            "memory_share is 1.5; it must be less than or equal to 1",
        ),
        (
            "source = 'builtin'\nbegins_thinking = 'yes'",
            "begins_thinking is 'yes'; it must be a valid boolean",
        ),
        (
            "source = 'builtin'\nsampling = { temperature = -1 }",
            "sampling: temperature is -1; it must be a number from 0 to 100",
        ),
        (
            "source = 'builtin'\nsampling = { heat = 1 }",
            "sampling: heat is not a sampling parameter",
        ),
        (
            "source = 'builtin'\npresets.terse.sampling = { temperature = -1 }",
            "presets.terse.sampling: temperature is -1; it must be a number from 0 to 100",
        ),
        (
            "source = 'builtin'\npresets.terse.prompt = 'Be brief.'",
            "has the unknown key presets.terse.prompt; allowed are system, sampling",
        ),
        (
            "source = 'builtin'\npresets.terse.system = 1",
            "presets.terse.system is 1; it must be a valid string",
        ),
        ("source = 'not a model'", "source is 'not a model'; allowed are 'builtin', a folder"),
    ],
)
def test_a_fault_names_table_key_and_what_is_allowed(
    tmp_path: Path, text: str, expected: str
) -> None:
    message = refusal(tmp_path, f"[mine]\n{text}\n")
    assert message.startswith(f"{tmp_path / 'models.toml'}: [mine] {expected}")


def test_only_tables_at_the_top(tmp_path: Path) -> None:
    assert "source is 'builtin'; only tables are allowed" in refusal(
        tmp_path, "source = 'builtin'\n"
    )


def test_names_folders_and_hub_ids(tmp_path: Path) -> None:
    known = Registry.read()
    assert known.find("qwen3-0.6b").hub_id == "Qwen/Qwen3-0.6B"
    assert known.find("Qwen/Qwen3-0.6B") == known.find("qwen3-0.6b")
    other = known.find("owner/Other-Model.v2")
    assert (other.name, other.hub_id, dict(other.sampling)) == (
        "Other-Model.v2",
        "owner/Other-Model.v2",
        {},
    )
    folder = known.find(str(tmp_path))
    assert (folder.name, folder.folder, folder.hub_id) == (tmp_path.name, tmp_path, None)


def test_unknown_model_names_three_that_there_are() -> None:
    with pytest.raises(ModelError) as caught:
        Registry.read().find("anything")
    assert caught.value.param == "model"
    message = caught.value.message
    sentence = r"model 'anything' is unknown; nearest to it are (.*), of the \d+ of "
    found = re.match(sentence, message)
    assert found is not None
    names = found[1].split(", ")
    assert len(names) == 3
    assert set(names) <= Registry.read().entries.keys()


def test_an_empty_registry_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"models\.toml has no models, and a folder or a hub id"):
        read(tmp_path, "").find("anything")


def test_presets_are_read_by_name(tmp_path: Path) -> None:
    table = "[mine.presets.terse]\nsystem = 'Be brief.'\nsampling = { temperature = 0 }\n"
    entry = read(tmp_path, f"[mine]\nsource = 'builtin'\n{table}[mine.presets.plain]\n").find(
        "mine"
    )
    assert entry.presets == (Preset("terse", "Be brief.", {"temperature": 0}), Preset("plain"))


@pytest.mark.parametrize(
    ("typed", "first"),
    [("qwen3-8", "qwen3-8b"), ("qwen3", "qwen3-0.6b"), ("Lama-3.1-8b", "llama-3.1-8b")],
)
def test_a_mistyped_name_is_told_the_closest_ones(typed: str, first: str) -> None:
    with pytest.raises(ModelError) as caught:
        Registry.read().find(typed)
    message = caught.value.message
    assert message.startswith(f"model '{typed}' is unknown; close to it are {first}")
    assert len(message.partition("close to it are ")[2].partition(", of the")[0].split()) <= 5


@pytest.mark.parametrize("path", ["./none", "/none/there", "~/none-there", "../none"])
def test_a_missing_folder_is_no_hub_id(path: str) -> None:
    with pytest.raises(ModelError, match=f"folder {path} does not exist"):
        Registry.read().find(path)


WHEEL = f"""[mine]
source = "pypi:a_Model==1.0"
file = "a_model/the-model.Q4_1.gguf"
sha256 = "{"0a" * 32}"
"""


def test_a_file_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = read(tmp_path, WHEEL)
    entry = known.find("mine")
    assert known.find("pypi:a_Model==1.0") is entry
    assert (entry.source, entry.hub_id, entry.folder) == ("pypi:a_Model==1.0", None, None)
    assert entry.availability() is Availability.DOWNLOAD
    assert entry.wheel is not None
    # The checksum is part of the place, so that another file is never taken for this one.
    folder = tmp_path / "cache" / "batchdeck" / "models" / "a_model-1.0-0a0a0a0a0a0a"
    assert entry.wheel.path == folder / "the-model.Q4_1.gguf"
    folder.mkdir(parents=True)
    (folder / "the-model.Q4_1.gguf.unpacked").touch()
    assert entry.availability() is Availability.DOWNLOAD
    entry.wheel.path.touch()
    assert entry.availability() is Availability.READY
    assert entry.local_folder() == entry.wheel.path


_FILE = "the path of a GGUF file inside the wheel, such as package/model.gguf"
_SUM = "the SHA-256 of that file, 64 hexadecimal digits in lower case"
_ONE = "a package is named with one exact version, as pypi:NAME==VERSION"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("a_Model==1.0", "a_Model", f"source is 'pypi:a_Model'; {_ONE}"),
        ("a_Model==1.0", "a_Model>=1.0", f"source is 'pypi:a_Model>=1.0'; {_ONE}"),
        ("a_Model==1.0", "a_Model==1.*", f"source is 'pypi:a_Model==1.*'; {_ONE}"),
        ("a_Model==1.0", "a_Model==one", f"source is 'pypi:a_Model==one'; {_ONE}"),
        ("a_Model==1.0", "../x==1.0", f"source is 'pypi:../x==1.0'; {_ONE}"),
        ("a_Model==1.0", "", f"source is 'pypi:'; {_ONE}"),
        ("file =", "#", f"lacks the key file, {_FILE}"),
        ("sha256 =", "#", f"lacks the key sha256, {_SUM}"),
        (".gguf", ".bin", f"file is 'a_model/the-model.Q4_1.bin'; it must be {_FILE}"),
        ("a_model/", "../", f"file is '../the-model.Q4_1.gguf'; it must be {_FILE}"),
        ("a_model/", "/", f"file is '/the-model.Q4_1.gguf'; it must be {_FILE}"),
        ("a_model/", "a\\\\b/", f"file is 'a\\\\b/the-model.Q4_1.gguf'; it must be {_FILE}"),
        ("0a0a", "0A0A", f"sha256 is '{'0A' * 32}'; it must be {_SUM}"),
        ("0a0a", "", f"sha256 is ''; it must be {_SUM}"),
        (
            "pypi:a_Model==1.0",
            "owner/model",
            "has the key file, which is for a source pypi:NAME==VERSION only, and its source is "
            "'owner/model'",
        ),
        (f'"{"0a" * 32}"', "7", "sha256 is 7; it must be a valid string"),
    ],
)
def test_a_file_in_a_wheel_that_is_not_named_rightly(
    tmp_path: Path, old: str, new: str, fault: str
) -> None:
    text = WHEEL.replace(old, new)
    assert refusal(tmp_path, text) == f"{tmp_path / 'models.toml'}: [mine] {fault}"


def test_availability_of_folders(tmp_path: Path) -> None:
    entry = read(tmp_path, "[mine]\nsource = './mine'\n").find("mine")
    assert entry.availability() is Availability.MISSING
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / SINGLE_FILE).touch()
    assert entry.availability() is Availability.MISSING
    (tmp_path / "mine" / CONFIG_FILE).touch()
    assert entry.availability() is Availability.READY
    assert Registry.read().find("builtin").availability() is Availability.READY


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((), Availability.DOWNLOAD),
        ((CONFIG_FILE,), Availability.DOWNLOAD),
        ((CONFIG_FILE, SINGLE_FILE), Availability.READY),
        ((CONFIG_FILE, INDEX_FILE), Availability.DOWNLOAD),
        ((CONFIG_FILE, INDEX_FILE, "model-00001-of-00001.safetensors"), Availability.READY),
    ],
)
def test_availability_of_hub_models(
    cache: Path, files: tuple[str, ...], expected: Availability
) -> None:
    snapshot = put_in_cache(cache, "owner/model", *files)
    entry = Registry.read().find("owner/model")
    assert entry.availability() is expected
    assert entry.local_folder() == (snapshot if expected is Availability.READY else None)
