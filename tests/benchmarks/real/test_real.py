"""The benchmark of model files, with workers that compute nothing."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import pytest

from benchmarks.peers import comparison
from benchmarks.peers.level import LEVELS
from benchmarks.peers.peers import OURS, PEERS, PLAIN, Contender
from benchmarks.real import __main__ as command
from benchmarks.real import entrants as entrants_module
from benchmarks.real.entrants import LLAMA, Entrant, folder_entrants
from benchmarks.real.measuring import (
    GREEDY_TOKENS,
    WINDOW_TOKENS,
    WINDOWS,
    Likeness,
    cut,
    equal_prefixes,
    measure,
)
from benchmarks.real.table import table

CHOSEN = argparse.Namespace(threads=1, rounds=1, tokens=4)


def entrant(peer: str, behaviour: str, model: Path) -> Entrant:
    worker = (sys.executable, "-m", "tests.benchmarks.peers.fake", behaviour)
    return Entrant(Contender(PEERS[peer], PLAIN), worker, model)


def test_a_text_is_cut_into_windows_that_begin_with_the_mark() -> None:
    windows = cut([7], range(100, 100 + 2 * WINDOW_TOKENS))
    assert [window[0] for window in windows] == [7, 7, 7]
    assert [len(window) for window in windows] == [WINDOW_TOKENS, WINDOW_TOKENS, 3]
    assert [token for window in windows for token in window[1:]] == [
        *range(100, 100 + 2 * WINDOW_TOKENS)
    ]
    assert [len(window) for window in cut([], range(10**5))] == [WINDOW_TOKENS] * WINDOWS


def test_texts_agree_up_to_the_first_token_that_differs() -> None:
    wanted = [(1, 2, 3), (1, 2, 3), (1, 2, 3)]
    assert equal_prefixes(wanted, [(1, 2, 3), (1, 9, 3), (9, 2, 3)]) == (1, pytest.approx(4 / 3))


def test_all_figures_of_an_entrant_are_measured_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "read_bandwidth", lambda device: 25e9)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    likeness = Likeness(
        windows=((1, 2, 3), (1, 2)),
        prompts=((5, 6), (7, 8)),
        perplexity=2.0,
        greedy=(tuple(range(GREEDY_TOKENS)), (0, 1, *range(GREEDY_TOKENS - 2))),
    )
    kinds = {OURS: "read", LLAMA: "", "bad": "refuse"}
    named = {"bad": LLAMA}
    group = {name: entrant(named.get(name, name), kind, model) for name, kind in kinds.items()}
    said: list[str] = []
    found, failed = measure(group, LEVELS["avx2"], likeness, CHOSEN, tmp_path, said.append)
    assert set(found) == {OURS, LLAMA}
    assert failed.keys() == {"bad"}
    assert "no such model" in failed["bad"]
    ours, llama = found[OURS], found[LLAMA]
    # Only what we keep can be missing at the first load.
    assert (len(ours.first), len(ours.cold), len(ours.warm)) == (1, 1, 1)
    assert (len(llama.first), len(llama.cold), len(llama.warm)) == (0, 1, 1)
    assert set(ours.speed) == set(llama.speed) == {1, 8, 32}
    assert ours.perplexity == pytest.approx(2.0)
    assert math.isnan(llama.perplexity)
    assert (ours.equal, ours.prefix) == (1, (GREEDY_TOKENS + 2) / 2)
    lines = table(found, likeness).splitlines()
    assert [line.split("  ")[0] for line in lines[2:]] == [
        *(OURS, LLAMA, "dequantized, float32", f"{OURS} / {LLAMA}"),
    ]


def test_loads_may_be_measured_alone(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    group = {OURS: entrant(OURS, "read", model)}
    found, failed = measure(group, LEVELS["avx2"], None, CHOSEN, tmp_path, lambda _: None)
    assert not failed
    assert (len(found[OURS].warm), found[OURS].speed) == (1, {})
    assert [line.split("  ")[0] for line in table(found, None).splitlines()[2:]] == [OURS]


def test_what_is_kept_between_loads_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(entrants_module, "Worker", lambda _, given, log: started.append(given))
    for peer in (OURS, LLAMA):
        entrant(peer, "", tmp_path).start(3, tmp_path / "kept", tmp_path / "log")
    assert started == [
        {"XDG_CACHE_HOME": str(tmp_path / "kept"), "OMP_NUM_THREADS": "3"},
        {"OMP_NUM_THREADS": "3"},
    ]


def test_a_folder_is_served_by_default_and_quantized(tmp_path: Path) -> None:
    found, missing = folder_entrants(
        tmp_path, LEVELS["avx2"], ["generate"], ["bf16", "int8"], None, tmp_path, print
    )
    assert not missing
    assert {name: one.command[3:] for name, one in found.items()} == {
        f"{OURS} bf16": ("-", "-"),
        "generate bf16": (),
        f"{OURS} int8": ("int8", "-"),
    }


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none.gguf"], "FILE: none.gguf is no file; it must be a GGUF file"),
        (["--levels=sse"], "--levels: 'sse' is none of avx2, avxvnni, avx512, amx, all"),
        (["--weights=int2"], "--weights: 'int2' is none of bf16, int8, int4, none"),
        (["--peers=vllm"], "--peers: 'vllm' is none of batchdeck, generate"),
        (["--rounds=0"], "--rounds"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["real", *arguments])
    with pytest.raises(SystemExit):
        command.main()
    assert complaint in capsys.readouterr().err
