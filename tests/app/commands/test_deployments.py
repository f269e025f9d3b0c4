"""The deployments in examples/: what they are built of, where they write, how they stop."""

from __future__ import annotations

import fnmatch
import re
import shlex
import signal
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from app.gateway.http.settings import HttpSettings
from app.gateway.mqtt.settings import MqttSettings
from app.process.exits import ExitCode
from app.settings.layers import unknown_variables

COMPOSE = Path("examples/compose")
DOCKERFILE = (COMPOSE / "Dockerfile").read_text()
BUILT, SERVED = re.split(r"^FROM .*\n", DOCKERFILE, flags=re.MULTILINE)[1:]
UNIT = Path("examples/systemd/batchdeck.service").read_text()
PROJECT = tomllib.loads(Path("pyproject.toml").read_text())
DRAIN_SECONDS = HttpSettings.model_fields["drain_seconds"].default


def unit() -> dict[str, str]:
    """The unit's lines by name; the variables by theirs, after `Environment `."""
    lines = [line.replace("Environment=", "Environment ", 1) for line in UNIT.splitlines()]
    stated = (line.partition("=") for line in lines if not line.startswith(("#", "[")))
    return {name: value for name, _, value in stated if name}


def unit_environment() -> dict[str, str]:
    named = unit().items()
    return {
        name.removeprefix("Environment "): value
        for name, value in named
        if name.startswith("Environment ")
    }


def image_environment() -> dict[str, str]:
    lines = re.findall(r"^ENV (.*)$", SERVED, flags=re.MULTILINE)
    return dict(pair.split("=", 1) for line in lines for pair in shlex.split(line))


def service(file: str, name: str = "batchdeck") -> Any:
    return yaml.safe_load((COMPOSE / file).read_text())["services"][name]


def copied() -> list[str]:
    """The files and folders that the image is made of."""
    lines = re.findall(r"^COPY (.*) \S+$", BUILT, flags=re.MULTILINE)
    return [name for line in lines for name in line.split()]


def is_ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build, by the forms of pattern that it has."""
    for pattern in Path(".dockerignore").read_text().splitlines():
        anywhere = pattern.removeprefix("**/")
        parts = PurePosixPath(path).parts
        names = parts if anywhere != pattern else parts[:1]
        if not pattern.startswith("#") and any(fnmatch.fnmatch(one, anywhere) for one in names):
            return True
    return False


def test_the_image_is_built_of_all_that_the_package_is() -> None:
    needed = [
        *PROJECT["tool"]["scikit-build"]["wheel"]["packages"],
        *PROJECT["project"]["license-files"],
        PROJECT["project"]["readme"],
        *re.findall(r"install\(FILES (\w\S*)", Path("CMakeLists.txt").read_text()),
        "pyproject.toml",
        "CMakeLists.txt",
    ]
    assert sorted(copied()) == sorted(needed)
    assert [name for name in copied() if is_ignored(name)] == []
    assert all(Path(name).exists() for name in copied())
    # A Python that the package is made for, and the same in both stages.
    (version,) = set(re.findall(r"^FROM python:([\d.]+)-slim", DOCKERFILE, flags=re.MULTILINE))
    assert version in SpecifierSet(PROJECT["project"]["requires-python"])
    assert f"cp{version.replace('.', '')}-" in str(PROJECT["tool"]["cibuildwheel"]["build"])


@pytest.mark.parametrize(
    "path",
    [
        ".git",
        ".venv",
        "app/commands/__pycache__",
        "engine/native/_kernels.cpython-311-x86_64-linux-gnu.so",
        "examples/compose/.env",
    ],
)
def test_neither_an_installation_nor_keys_go_into_the_build(path: str) -> None:
    assert is_ignored(path)


def test_keys_are_not_committed() -> None:
    """compose.yaml refuses every command without KEY, so that it has to be in a file."""
    assert service("compose.yaml")["environment"]["TUI_API_KEY"].startswith("${KEY:?")
    assert ".env" in Path(".gitignore").read_text().splitlines()


def test_all_ask_at_the_address_that_the_image_listens_on() -> None:
    port = int(re.findall(r'"--http", "0\.0\.0\.0:(\d+)"\]$', SERVED, flags=re.MULTILINE)[0])
    assert f"\nEXPOSE {port}\n" in SERVED
    here = service("compose.yaml")
    assert here["ports"] == [f"127.0.0.1:{port}:{port}"]
    kind, python, flag, code = here["healthcheck"]["test"]
    assert (kind, python, flag) == ("CMD", "python", "-c")
    compile(code, "health check", "exec")
    url = urlsplit(re.findall(r'urlopen\("(\S+)"\)', code)[0])
    assert (url.hostname, url.port) == ("127.0.0.1", port)
    assert f"| `GET {url.path}` |" in Path("docs/http.md").read_text()
    asked = service("compose.yaml", "open-webui")["environment"]["OPENAI_API_BASE_URL"]
    assert asked == f"http://batchdeck:{port}/v1"
    scraped = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"] == [{"targets": [f"batchdeck:{port}"]}]


def test_variables_are_settings() -> None:
    composed = service("compose.yaml")["environment"]
    for stated in (image_environment(), composed, unit_environment()):
        assert any(name.startswith("TUI_") for name in stated)
        assert unknown_variables(stated) == []


def test_there_is_time_for_the_replies_that_run_when_it_is_stopped() -> None:
    """Docker's own 10 s are the drain's: the streams that still ran would end without a word."""
    assert MqttSettings.model_fields["drain_seconds"].default == DRAIN_SECONDS
    runs = re.findall(r"^#   docker run .*$", DOCKERFILE, flags=re.MULTILINE)
    assert len(runs) == 2
    stated = [int(re.findall(r" --stop-timeout (\d+) ", line)[0]) for line in runs]
    stated.append(int(service("compose.yaml")["stop_grace_period"].removesuffix("s")))
    stated.append(int(unit()["TimeoutStopSec"]))
    assert min(stated) >= DRAIN_SECONDS + 10


def test_a_crash_is_started_anew_and_what_would_fail_again_is_not() -> None:
    found = unit()
    assert found["Restart"] == service("compose.yaml")["restart"] == "on-failure"
    final = {int(code) for code in found["RestartPreventExitStatus"].split()}
    assert final == {ExitCode.FAILED, ExitCode.USAGE, ExitCode.NO_MODEL}
    # A service that is stopped while it loads has not failed.
    assert int(found["SuccessExitStatus"]) == 128 + signal.SIGTERM
