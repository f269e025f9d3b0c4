"""The deployments in examples/: what our kernels need on a GPU, and what has a crash start anew."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import yaml

from app.process.exits import ExitCode

COMPOSE = Path("examples/compose")


def unit() -> Any:
    parser = configparser.RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = Path("examples/systemd/batchdeck.service").read_text()
    # The parser keeps the last of several lines of one name.
    lines = [line.replace("Environment=", "Environment ", 1) for line in text.splitlines()]
    parser.read_string("\n".join(lines))
    return parser["Service"]


def service(file: str) -> Any:
    return yaml.safe_load((COMPOSE / file).read_text())["services"]["batchdeck"]


def test_the_image_compiles_kernels_and_keeps_them() -> None:
    served = (COMPOSE / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "apt-get install --yes --no-install-recommends gcc libc6-dev" in served
    assert "\nVOLUME /data\n" in served
    assert " TRITON_CACHE_DIR=/data/" in served
    assert " XDG_CACHE_HOME=/data/" in served
    # Who runs it may write there.
    assert served.index("install -d -o batchdeck /data") < served.index("USER batchdeck")


def test_compose_reserves_the_gpus_where_it_is_asked_to() -> None:
    assert "deploy" not in service("compose.yaml")  # it could not start without a GPU
    gpu = service("gpu.yaml")
    assert gpu["build"]["args"] == {"PIP_EXTRA_INDEX_URL": ""}
    (reserved,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_unit_has_folders_to_keep_kernels_and_verdicts_in() -> None:
    found = unit()
    assert found["CacheDirectory"] == "batchdeck"
    assert found["Environment TRITON_CACHE_DIR"].startswith("%C/batchdeck/")
    assert found["Environment XDG_CACHE_HOME"].startswith("%C/batchdeck")


def test_a_crash_is_started_anew_and_what_would_fail_again_is_not() -> None:
    found = unit()
    assert found["Restart"] == service("compose.yaml")["restart"] == "on-failure"
    final = {int(code) for code in found["RestartPreventExitStatus"].split()}
    assert final == {ExitCode.FAILED, ExitCode.USAGE, ExitCode.NO_MODEL}
