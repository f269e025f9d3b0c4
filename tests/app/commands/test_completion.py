"""Shells complete commands, options and their values by the script that `tui` gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TUI = Path(sys.executable).with_name("tui")
# Bash cuts a word at `=`, so that zsh alone completes the values of knobs.
COMPLETED = {
    "tui ser": {"serve"},
    "tui models get smollm2-1": {"smollm2-135m", "smollm2-1.7b"},
    "tui models smollm2-13": {"smollm2-135m"},
    "tui --model smollm2-13": {"smollm2-135m"},
    "tui serve --policy st": {"stall_free", "static"},
    "tui bench --model smollm2-13": {"smollm2-135m"},
    "tui --knob victi": {"victim=lowest_priority", "victim=latest", "victim=least_computed"},
    "tui --knob ageing": {"ageing="},
    "tui --quantize i": {"int8", "int4"},
    "tui --dtype b": {"bfloat16"},
    "tui --theme ": {"dark", "light", "contrast", "ansi"},
    "tui serve --log-level w": {"warning"},
    # The shell has the names of files for these.
    "tui --model ./no": set(),
    "tui --config /et": set(),
}


@pytest.mark.parametrize("typed", COMPLETED)
def test_bash_completes_what_was_typed(typed: str, tmp_path: Path) -> None:
    words = typed.split(" ")
    stated = " ".join(f"'{word}'" for word in words)
    script = (
        f'eval "$(tui --show-completion bash)"; COMP_WORDS=({stated}); COMP_CWORD={len(words) - 1};'
        ' _tui_completion tui; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {
        "PATH": f"{TUI.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True
    )
    assert (set(done.stdout.split()), done.stderr) == (COMPLETED[typed], "")


def test_a_broken_registry_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.settings.flags import COMPLETE_MODEL
    from engine.model import registry

    broken = tmp_path / "models.toml"
    broken.write_text("[", encoding="utf-8")
    monkeypatch.setattr(registry, "_shipped", lambda: broken)
    assert COMPLETE_MODEL("smol") == []
