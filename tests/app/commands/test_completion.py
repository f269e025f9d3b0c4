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
    "tui --model smollm2-13": {"smollm2-135m"},
    "tui serve --policy st": {"stall_free", "static"},
    "tui --knob victi": {"victim=lowest_priority", "victim=latest", "victim=least_computed"},
    "tui --theme ": {"dark", "light", "contrast", "ansi"},
    # The shell has the names of files for these.
    "tui --config /et": set(),
}


def test_bash_completes_what_was_typed(tmp_path: Path) -> None:
    script = 'eval "$(tui --show-completion bash)"; '
    for typed in COMPLETED:
        words = typed.split(" ")
        stated = " ".join(f"'{word}'" for word in words)
        script += (
            f"COMP_WORDS=({stated}); COMP_CWORD={len(words) - 1}; _tui_completion tui;"
            ' echo "${COMPREPLY[@]}"; '
        )
    environment = os.environ | {
        "PATH": f"{TUI.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SHELL": "/bin/bash",
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stderr == ""
    found = [{*line.split()} for line in done.stdout.splitlines()]
    assert dict(zip(COMPLETED, found, strict=True)) == COMPLETED


def test_a_broken_registry_completes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.settings.flags import COMPLETE_MODEL
    from engine.model.catalog import registry

    broken = tmp_path / "models.toml"
    broken.write_text("[", encoding="utf-8")
    monkeypatch.setattr(registry, "_shipped", lambda: broken)
    assert COMPLETE_MODEL("smol") == []
