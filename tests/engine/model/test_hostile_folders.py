"""Folders that mean harm, or look like it: each is refused at once, in one sentence that names it.

What a fault made hang is loaded on a thread of its own, so that it would fail here and not hang.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.api.client import LoadRequest
from engine.api.errors import ModelError
from engine.model.files import folder as folder_module
from engine.model.files.checkpoint import CONFIG_FILE, INDEX_FILE, SINGLE_FILE
from engine.model.loading.loader import load_model
from tests.support.checkpoints import save_checkpoint

# The slowest of them takes a second; a busy machine may need many times that.
SECONDS = 120
NORM = "model.norm.weight"
FIRST_NORM = "model.layers.0.input_layernorm.weight"

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_checkpoint(folder, max_shard_size="100KB")
    return folder


def refusal(folder: Path) -> str:
    """The sentence with which a folder is refused, its path written as {}."""
    raised: list[BaseException] = []

    def load() -> None:
        request = LoadRequest(str(folder), device="cpu", dtype="float32", num_blocks=40)
        try:
            load_model(request, lambda *_: None).close()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it hangs"
    assert raised, "it is loaded"
    (error,) = raised
    assert isinstance(error, ModelError), repr(error)
    assert error.message.isprintable()
    assert len(error.message) < 1000
    return error.message.replace(str(folder), "{}")


# What is done to a folder


def state(**values: object) -> Change:
    """Keys of the configuration; a name with `__` is one inside another."""

    def change(folder: Path) -> None:
        path = folder / CONFIG_FILE
        config = json.loads(path.read_text())
        for name, value in values.items():
            outer, _, inner = name.partition("__")
            config[outer] = {inner: value} if inner else value
        path.write_text(json.dumps(config))

    return change


def tokenizer(**values: object) -> Change:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def tokenizer_config(**values: object) -> Change:
    def change(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def header(change_entries: Callable[[dict[str, Any]], object]) -> Change:
    def change(folder: Path) -> None:
        path = folder / SINGLE_FILE
        raw = path.read_bytes()
        end = 8 + int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8:end])
        change_entries(entries)
        new = json.dumps(entries).encode()
        path.write_bytes(len(new).to_bytes(8, "little") + new + raw[end:])

    return change


def add(name: str, shape: object, offsets: object = (0, 0), dtype: object = "F32") -> Change:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    return header(lambda entries: entries.update({name: entry}))


def move(name: str, by: int) -> Change:
    def change(entries: dict[str, Any]) -> None:
        entries[name]["data_offsets"] = [at + by for at in entries[name]["data_offsets"]]

    return header(change)


def write(name: str, content: str | bytes) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def fifo(name: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def link(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def grow(name: str, size: int) -> Change:
    def change(folder: Path) -> None:
        (folder / name).touch()
        os.truncate(folder / name, size)  # sparse: it takes no room on the disk

    return change


DEEP = "[" * 100_000
CONFIG = f"{{}}/{CONFIG_FILE}"
SINGLE = f"{{}}/{SINGLE_FILE}"
WRONG = f"{CONFIG} is not valid: "

FILES: dict[str, tuple[Change, str]] = {
    "config-fifo": (fifo(CONFIG_FILE), f"{CONFIG} is a FIFO; only regular files are read"),
    "config-device": (
        link(CONFIG_FILE, "/dev/zero"),
        f"{CONFIG} is a character device; only regular files are read",
    ),
    "config-large": (
        grow(CONFIG_FILE, 5 << 20),
        f"{CONFIG} has 5.0 MiB; at most 4.0 MiB are allowed",
    ),
    "config-deep": (write(CONFIG_FILE, DEEP), f"{CONFIG} is broken: it is nested too deeply"),
    "generation-fifo": (
        fifo("generation_config.json"),
        "{}/generation_config.json is a FIFO; only regular files are read",
    ),
    "generation-deep": (
        write("generation_config.json", DEEP),
        "{}/generation_config.json is broken: it is nested too deeply",
    ),
    "generation-ends": (
        write("generation_config.json", '{"eos_token_id": {"a": 1}}'),
        "{}/generation_config.json has eos_token_id {'a': 1}; it must be a token's number, or a "
        "list of them",
    ),
    "tokenizer-fifo": (
        fifo("tokenizer.json"),
        "{}/tokenizer.json is a FIFO; only regular files are read",
    ),
    "tokenizer-large": (
        grow("tokenizer.json", 1 << 40),
        "{}/tokenizer.json has 1024.00 GiB; at most 128.0 MiB are allowed",
    ),
    "tokenizer-config-fifo": (
        fifo("tokenizer_config.json"),
        "{}/tokenizer_config.json is a FIFO; only regular files are read",
    ),
    "merges-fifo": (fifo("merges.txt"), "{}/merges.txt is a FIFO; only regular files are read"),
    "template-fifo": (
        fifo("chat_template.jinja"),
        "{}/chat_template.jinja is a FIFO; only regular files are read",
    ),
    "template-large": (
        grow("chat_template.jinja", 2 << 20),
        "{}/chat_template.jinja has 2.0 MiB; at most 1.0 MiB are allowed",
    ),
    "other-template-fifo": (
        fifo("additional_chat_templates/tools.jinja"),
        "{}/additional_chat_templates/tools.jinja is a FIFO; only regular files are read",
    ),
    "weights-fifo": (fifo(SINGLE_FILE), f"{SINGLE} is a FIFO; only regular files are read"),
    "weights-device": (
        link(SINGLE_FILE, "/dev/zero"),
        f"{SINGLE} is a character device; only regular files are read",
    ),
}

FROM = "allowed are whole numbers from"
LAYERS = "(the layers that the weights' names tell apart, and 1,024 at most)"
SIDES = "(the longest side of a weight)"
SIZES: dict[str, tuple[Change, str]] = {
    **{
        f"layers-{value!r:.9}": (
            state(num_hidden_layers=value),
            f"{WRONG}num_hidden_layers is {value!r}; {FROM} 1 to 3 {LAYERS}",
        )
        for value in (10**4, 10**9, 0, -1, 2.5, "3", True)
    },
    "layers-in-a-nested-one": (
        state(text_config__num_hidden_layers=10**9),
        f"{WRONG}text_config.num_hidden_layers is 1000000000; {FROM} 1 to 3 {LAYERS}",
    ),
    "layers-by-another-name": (
        state(n_layer=10**9),
        f"{WRONG}n_layer is 1000000000; {FROM} 1 to 3 {LAYERS}",
    ),
    **{
        f"{name}-{value:.0e}": (
            state(**{name: value}),
            f"{WRONG}{name} is {value}; {FROM} 1 to 128 {SIDES}",
        )
        for name in (
            "vocab_size",
            "hidden_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        )
        for value in (10**6, -1)
    },
    "experts": (
        state(num_experts=10**7),
        f"{WRONG}num_experts is 10000000; {FROM} 0 to 128 (the longest side of a weight, and "
        "16,384 at most)",
    ),
    "positions": (
        state(max_position_embeddings=10**30),
        f"{WRONG}max_position_embeddings is {10**30}; {FROM} 1 to 134217728 (128 times the longest "
        "default of transformers)",
    ),
    "inner": (
        state(intermediate_size=10**6),
        f"{CONFIG} describes a model of 432,033,372 numbers; its weights hold 67,920",
    ),
    "heads-that-share": (
        state(num_key_value_heads=3),
        "LlamaForCausalLM is not supported: its 4 attention heads cannot share 3 heads of keys and "
        "values evenly",
    ),
}

MEANINGS: dict[str, tuple[Change, str]] = {
    "kind": (state(model_type=["llama"]), f"{CONFIG} has model_type ['llama'], which transformers"),
    "architectures": (state(architectures=5), f"{WRONG}TypeError: "),
    "layer-types": (state(layer_types=[[1], [2], [3]]), f"{WRONG}TypeError: "),
    "rope": (state(rope_parameters=[1]), f"{WRONG}StrictDataclassFieldValidationError: "),
    "theta": (
        state(rope_parameters={"rope_type": "default", "rope_theta": "x"}),
        "LlamaForCausalLM cannot be built from its config: TypeError: ",
    ),
    "tokenizer-deep": (
        write("tokenizer.json", DEEP),
        "the tokenizer in {} is broken: RecursionError: ",
    ),
    "tokenizer-config-deep": (
        write("tokenizer_config.json", DEEP),
        "the tokenizer in {} is broken: RecursionError: ",
    ),
    "tokenizer-class": (
        tokenizer_config(tokenizer_class=[1]),
        "the tokenizer in {} is broken: AttributeError: ",
    ),
    "tokenizer-that-panics": (
        tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AQ=="}),
        "the tokenizer in {} is broken: PanicException: ",
    ),
    "tokenizer-without-unknown": (
        tokenizer(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"}),
        "the model's tokenizer cannot be used: Exception: ",
    ),
    "template-bytes": (
        write("chat_template.jinja", b"\xff"),
        "the tokenizer in {} is broken: UnicodeDecodeError: ",
    ),
}

HEADERS: dict[str, tuple[Change, str]] = {
    "side": (
        add("x", [2**63, 0]),
        f"{SINGLE} is corrupt: x has the shape [9223372036854775808, 0] at [0, 0]; sides and "
        "offsets must be from 0 to 2^63 - 1",
    ),
    "product": (
        add("x", [2**40, 2**40, 0]),
        f"{SINGLE} is corrupt: x has the shape [1099511627776, 1099511627776, 0]; its sides must "
        "make 2^63 - 1 at most",
    ),
    "product-of-bytes": (
        add("x", [2**40, 2**20]),
        f"{SINGLE} is corrupt: x has the shape [1099511627776, 1048576] in F32, "
        "4611686018427387904 bytes; its offsets leave 0",
    ),
    "axes": (
        add("x", [1] * 65, (0, 4)),
        f"{SINGLE} is corrupt: x has the shape [1, 1, 1, 1, 1, 1, ...]; it must have 64 sides at "
        "most",
    ),
    "side-negative": (add("x", [-1]), f"{SINGLE} is corrupt: x has the shape [-1] at [0, 0]; "),
    "side-true": (add("x", [True], (0, 4)), f"{SINGLE} is corrupt: x has the shape [True] at "),
    "offsets-text": (
        add("x", [], "ab"),
        f"{SINGLE} is corrupt: x has the shape [] at ['a', 'b']; ",
    ),
    "offsets-three": (
        add("x", [], (0, 1, 2)),
        f"{SINGLE} is corrupt: x has no dtype, shape and two data_offsets",
    ),
    "entry-list": (
        header(lambda entries: entries.update(x=[])),
        f"{SINGLE} is corrupt: x has no dtype, shape and two data_offsets",
    ),
    "overlap": (
        header(lambda entries: entries.update(x=entries[NORM])),
        f"{SINGLE} is corrupt: x begins at byte ",
    ),
    "overlap-in-part": (move(FIRST_NORM, -4), f"{SINGLE} is corrupt: {FIRST_NORM} begins at byte "),
    "hole": (move(FIRST_NORM, 4), f"{SINGLE} is corrupt: {FIRST_NORM} begins at byte "),
    "deep": (
        lambda folder: write(SINGLE_FILE, len(DEEP).to_bytes(8, "little") + DEEP.encode())(folder),
        f"{SINGLE} is corrupt: its header is not a safetensors header",
    ),
    "name": (
        add("\x1b[31mred", [], dtype="\x1b[2J"),
        f"{SINGLE} stores \\x1b[31mred as \\x1b[2J; supported are ",
    ),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(*case, id=f"{kind}-{name}")
        for kind, cases in {
            "files": FILES,
            "sizes": SIZES,
            "meanings": MEANINGS,
            "headers": HEADERS,
        }.items()
        for name, case in cases.items()
    ],
)
def test_a_folder_is_refused(saved: Path, tmp_path: Path, change: Change, expected: str) -> None:
    folder = tmp_path / "hostile"
    shutil.copytree(saved, folder)
    change(folder)
    assert refusal(folder).startswith(expected)


def name_shards(*names: str) -> Change:
    def change(folder: Path) -> None:
        path = folder / INDEX_FILE
        index = json.loads(path.read_text())
        index["weight_map"] |= {f"x{at}": name for at, name in enumerate(names)}
        path.write_text(json.dumps(index))

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (fifo(INDEX_FILE), f"{{}}/{INDEX_FILE} is a FIFO; only regular files are read"),
        (
            link(INDEX_FILE, "/dev/zero"),
            f"{{}}/{INDEX_FILE} is a character device; only regular files are read",
        ),
        (
            grow(INDEX_FILE, 101 << 20),
            f"{{}}/{INDEX_FILE} has 101.0 MiB; at most 100.0 MiB are allowed",
        ),
        (write(INDEX_FILE, DEEP), f"{{}}/{INDEX_FILE} is broken: it is nested too deeply"),
        (
            write(INDEX_FILE, '{"weight_map": [1]}'),
            f"{{}}/{INDEX_FILE} is broken: it has no weight_map from tensors to files",
        ),
        (name_shards(".."), "{}/.. is a directory; only regular files are read"),
        (name_shards("a\0b"), "{}/a\\x00b cannot be read: no file has such a name"),
        (name_shards("\ud800"), "{}/\\ud800 cannot be read: no file has such a name"),
        (name_shards("a" * 300), f"{{}}/{'a' * 300} cannot be read: File name too long"),
        (name_shards("\x1b[2J.bin"), "{}/\\x1b[2J.bin is missing; "),
    ],
)
def test_an_index_is_refused(sharded: Path, tmp_path: Path, change: Change, expected: str) -> None:
    folder = tmp_path / "hostile"
    shutil.copytree(sharded, folder)
    change(folder)
    assert refusal(folder).startswith(expected)


def test_a_name_in_the_index_alone_is_shown_harmless(sharded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    shutil.copytree(sharded, folder)
    path = folder / INDEX_FILE
    index = json.loads(path.read_text())
    shard = next(iter(index["weight_map"].values()))
    index["weight_map"]["\x1b[31mred\n"] = shard
    path.write_text(json.dumps(index))
    assert refusal(folder) == (
        f"{{}}/{shard} lacks the tensor \\x1b[31mred\\n that the index says it holds"
    )


@pytest.mark.parametrize("stage", ["AutoConfig", "AutoTokenizer", "Vocabulary"])
@pytest.mark.parametrize("kind", ["PanicException", "MemoryError", "RecursionError"])
def test_whatever_a_library_raises_is_told(
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    stage: str,
    kind: str,
) -> None:
    """A panic in Rust derives from BaseException alone."""
    base = BaseException if kind == "PanicException" else Exception
    error = type(kind, (base,), {})("at src/lib.rs:1\n  it broke")

    def fail(*_: object, **__: object) -> None:
        raise error

    if stage == "Vocabulary":
        monkeypatch.setattr(folder_module, stage, fail)
    else:
        monkeypatch.setattr(getattr(transformers, stage), "from_pretrained", fail)
    if stage == "AutoTokenizer":
        request.getfixturevalue("encodes_here")
    what = {
        "AutoConfig": WRONG.removesuffix(": "),
        "AutoTokenizer": "the tokenizer in {} is broken",
        "Vocabulary": "the tokenizer in {} is broken",
    }[stage]
    assert refusal(saved) == f"{what}: {kind}: at src/lib.rs:1 it broke"


@pytest.mark.usefixtures("encodes_here")
def test_what_ends_the_program_is_no_fault_of_a_folder(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_model(LoadRequest(str(saved), device="cpu", num_blocks=40), lambda *_: None)


def test_links_as_a_hub_cache_has_them_are_followed(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for file in saved.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "gone.json").symlink_to("nowhere")
    request = LoadRequest(str(folder), device="cpu", dtype="float32", num_blocks=40)
    load_model(request, lambda *_: None).close()


def test_a_fifo_that_nobody_reads_hurts_nobody(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(saved, folder)
    os.mkfifo(folder / "log.pipe")
    request = LoadRequest(str(folder), device="cpu", dtype="float32", num_blocks=40)
    load_model(request, lambda *_: None).close()
