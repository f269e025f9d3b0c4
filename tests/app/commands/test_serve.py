"""`tui serve` over a scripted engine: as a process of its own, and with a fake gateway."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from app.commands import serve
from app.gateway.gateways import Gateways
from app.gateway.http.settings import HttpError, HttpSettings
from app.gateway.mqtt.settings import MqttSettings
from app.process.exits import ExitCode
from app.process.serving import ModelLoadError
from app.settings.settings import Settings, SettingsError
from app.system.engine_crash import EngineCrashError
from engine.api.client import LoadRequest
from tests.support.brokers import Mosquitto, free_port
from tests.support.mqtt_peer import Peer, peer
from tests.support.scripted_engine import ScriptedEngine

# A token every 10 ms; with PAUSED=1 none.
PROGRAM = """
import os, sys, threading, time
from contextlib import contextmanager
from app.commands import serve
from app.commands.cli import main
from tests.support.scripted_engine import ScriptedEngine

@contextmanager
def loading(request):
    engine = ScriptedEngine(lambda submission: "word " * 50)
    def drive():
        while True:
            engine.advance()
            time.sleep(0.01)
    if not os.environ.get("PAUSED"):
        threading.Thread(target=drive, daemon=True).start()
    yield engine
    print("closed", file=sys.stderr)

serve.loading = loading
main()
"""
NODE = "llm/v1/default/node/box"


@pytest.fixture(scope="module")
def broker() -> Iterator[Mosquitto]:
    with Mosquitto() as mosquitto:
        yield mosquitto


@contextmanager
def serving(
    port: int,
    *flags: str,
    env: Mapping[str, str] | None = None,
    start: Callable[[], object] = lambda: None,
) -> Iterator[subprocess.Popen[str]]:
    """The process, once it says that it serves."""
    url = f"mqtt://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", "--mqtt", url, "--node", "box", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        preexec_fn=lambda: (_forget_signals(), start()),
    )
    try:
        assert read_to(process, f"INFO: serving builtin on {url}, pool default, node box\n")
        yield process
    finally:
        process.kill()
        process.communicate()


def _forget_signals() -> None:
    """Tests that were started in the background, or by nohup, ignore signals, and so would the
    processes that they start."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def read_to(process: subprocess.Popen[str], end: str) -> str:
    """The line of its standard error that ends like this."""
    assert process.stderr is not None
    return next((line for line in process.stderr if line.endswith(end)), "")


@contextmanager
def supervisor(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(folder / "notify"))
        one.settimeout(10)
        yield one


def online(client: Peer) -> None:
    client.watch(f"{NODE}/status")
    client.wait(lambda: any(b'"online"' in payload for _, payload, _ in tuple(client.messages)))


def test_a_signal_lets_what_runs_end(broker: Mosquitto, own_process: Path) -> None:
    with supervisor(own_process) as systemd, peer(broker.port) as client:
        told = {"NOTIFY_SOCKET": str(own_process / "notify"), "WATCHDOG_USEC": "400000"}
        with serving(broker.port, env=told) as process:
            assert systemd.recv(100) == b"READY=1"
            assert systemd.recv(100) == b"WATCHDOG=1"
            online(client)
            client.ask("1")
            client.wait(lambda: len(client.replies("1")) > 2)
            process.send_signal(signal.SIGTERM)
            assert client.end("1")["finish_reason"] == "stop"
            assert process.wait(20) == ExitCode.OK
            assert process.stderr is not None
            *_, draining, ended, closed = process.stderr.read().splitlines()
            assert draining == "tui: INFO: draining; a second signal ends it at once"
            assert ended.startswith("tui: INFO: alice mqtt scripted ")
            assert closed == "closed"
        while (state := systemd.recv(100)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1"
        client.wait(lambda: b'"offline"' in client.messages[-1][1])


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGINT, ExitCode.INTERRUPTED)],
)
def test_a_second_signal_ends_it_at_once(
    number: signal.Signals, code: ExitCode, broker: Mosquitto, own_process: Path
) -> None:
    with peer(broker.port) as client, serving(broker.port, env={"PAUSED": "1"}) as process:
        online(client)
        client.ask(number.name)
        client.wait(lambda: client.replies(number.name))
        process.send_signal(number)
        assert read_to(process, "draining; a second signal ends it at once\n")
        process.send_signal(number)
        error = client.end(number.name)["error"]
        assert (error["code"], error["retryable"]) == (503, True)
        assert process.wait(20) == code


def test_a_closed_terminal_drains_it_however_often_that_is_told(
    broker: Mosquitto, own_process: Path
) -> None:
    """The shell and the kernel each send a SIGHUP."""
    with peer(broker.port) as client, serving(broker.port) as process:
        online(client)
        client.ask("hup")
        client.wait(lambda: len(client.replies("hup")) > 2)
        process.send_signal(signal.SIGHUP)
        assert read_to(process, "draining; a second signal ends it at once\n")
        process.send_signal(signal.SIGHUP)
        assert client.end("hup")["finish_reason"] == "stop"
        assert process.wait(20) == ExitCode.OK


def test_who_told_it_to_outlive_the_terminal_is_obeyed(
    broker: Mosquitto, own_process: Path
) -> None:
    def nohup() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with peer(broker.port) as client, serving(broker.port, start=nohup) as process:
        online(client)
        process.send_signal(signal.SIGHUP)
        client.ask("nohup")
        assert client.end("nohup")["finish_reason"] == "stop"
        assert process.poll() is None


def test_a_broker_may_come_later(own_process: Path) -> None:
    port = free_port()
    with serving(port) as process:
        assert read_to(process, f"WARNING: mqtt://127.0.0.1:{port}: no broker listens there\n")
        with Mosquitto(port=port), peer(port) as client:
            online(client)
            client.ask("1")
            assert client.end("1")["type"] == "final"


def test_the_line_to_try_the_embedded_broker_is_true(own_process: Path) -> None:
    with serving(free_port(), "--embedded-broker") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("tui: INFO: try it: tui ask --mqtt mqtt://127.0.0.1:")
        arguments = shlex.split(line.partition("tui ask ")[2])
        assert read_to(process, f"INFO: connected to {arguments[1]}\n")
        program = [
            sys.executable,
            "-c",
            "from app.commands.cli import main; main()",
            "ask",
            *arguments,
        ]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=20)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "word " * 50 + "\n", "")


class FakeGateway:
    """Ends how it is told to."""

    failure = ""
    has_ended = False
    raises: type[BaseException] | None = None

    def __init__(self, *_: object, **__: object) -> None:
        self.calls: list[object] = []
        made.append(self)

    def start(self) -> None:
        self.calls.append("start")

    def wait_ended(self, timeout: float | None) -> bool:
        if self.raises is not None:
            raise self.raises
        return self.has_ended

    def request_stop(self, drain_seconds: float | None = None) -> None:
        """`stop` reports the end."""

    def stop(self, drain_seconds: float | None = None) -> None:
        self.calls.append(("stop", drain_seconds))
        if self.raises is not None and drain_seconds is None:
            raise self.raises


made: list[FakeGateway] = []


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, own_process: Path) -> Settings:
    made.clear()
    monkeypatch.setattr(serve, "MqttGateway", FakeGateway)
    monkeypatch.setattr(serve, "loading", lambda *_: nullcontext(ScriptedEngine()))
    return Settings(data_dir=own_process, mqtt=MqttSettings(url="mqtt://127.0.0.1:1"))


def test_a_gateway_that_gave_up_is_a_failure(
    fake: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeGateway, "failure", "another server took over")
    assert serve.run(fake) == ExitCode.FAILED
    assert made[0].calls == ["start", ("stop", None)]
    assert caplog.messages[-1] == "no longer serving over MQTT: another server took over"


def test_the_first_line_tells_what_the_weights_were_quantized_to(
    fake: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine(loaded=False)
    engine.load(LoadRequest("builtin", quantize="int8"))
    engine.ready()
    caplog.set_level("INFO", "app.commands.serve")
    monkeypatch.setattr(serve, "loading", lambda *_: nullcontext(engine))
    monkeypatch.setattr(FakeGateway, "failure", "another server took over")
    serve.run(fake)
    assert "serving builtin (int8, 98.9% equal best) on mqtt://127.0.0.1:1, " in caplog.text


def test_the_log_tells_once_what_is_off_the_fast_path(
    fake: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine(off_kernels="sin in Layer is not read")
    monkeypatch.setattr(serve, "loading", lambda *_: nullcontext(engine))
    monkeypatch.setattr(FakeGateway, "failure", "another server took over")
    serve.run(fake)
    (told,) = [one for one in caplog.messages if "fast path" in one]
    assert told == (
        "scripted is not wholly on the fast path: it runs module by module, without our kernels for"
        " its operations: sin in Layer is not read"
    )


def test_a_gateway_that_crashed_is_a_crash(fake: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor is to start it again; where another server took over, it is not."""
    monkeypatch.setattr(FakeGateway, "failure", "ZeroDivisionError: division by zero")
    monkeypatch.setattr(FakeGateway, "has_ended", True)
    with pytest.raises(RuntimeError, match=r"^the MQTT gateway crashed: ZeroDivisionError"):
        serve.run(fake)
    assert made[0].calls == ["start", ("stop", 0.0)]


def test_an_engine_that_crashed_is_a_crash(
    fake: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The gateway is well, and would go on telling the broker that this node is online."""
    engine = ScriptedEngine()
    monkeypatch.setattr(serve, "loading", lambda *_: nullcontext(engine))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    looks = 0

    def wait_ended(_self: FakeGateway, _timeout: float) -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            engine.crash("the text thread failed: Panic: a bug")
        assert looks < 9
        return False

    monkeypatch.setattr(FakeGateway, "wait_ended", wait_ended)
    monkeypatch.setattr(
        FakeGateway, "view", lambda _: SimpleNamespace(time=time.monotonic()), raising=False
    )
    with supervisor(tmp_path) as systemd:
        with pytest.raises(EngineCrashError, match=r"^the text thread failed: Panic: a bug$"):
            serve.run(fake)
        told = [systemd.recv(100) for _ in range(4)]
    assert told == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert made[0].calls == ["start", ("stop", 0.0)]


def test_what_comes_while_it_drains_ends_it_at_once(
    fake: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGateway, "raises", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        serve.run(fake)
    assert made[0].calls == ["start", ("stop", None), ("stop", 0.0)]


def test_what_comes_before_it_drains_ends_it_at_once(fake: Settings) -> None:
    with pytest.raises(ZeroDivisionError), serve.gateways(fake, ScriptedEngine()):
        raise ZeroDivisionError
    assert made[0].calls == ["start", ("stop", 0.0)]


def test_beside_the_screen_it_ends_with_the_screen(fake: Settings) -> None:
    with serve.gateways(fake, ScriptedEngine()) as running:
        assert (made, running.http) == ([running.mqtt], None)
        assert made[0].calls == ["start"]
    assert made[0].calls == ["start", ("stop", None)]


def test_without_a_broker_there_is_no_gateway(fake: Settings) -> None:
    with serve.gateways(Settings(), ScriptedEngine()) as running:
        assert running == Gateways()
    assert made == []


def test_an_embedded_broker_that_cannot_listen_is_told(fake: Settings, broker: Mosquitto) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}"
    taken = Settings(mqtt=MqttSettings(url=url, embedded_broker=True))
    with pytest.raises(SettingsError, match=rf"^embedded_broker: port {broker.port} of .* taken"):
        serve.run(taken)
    assert made == []


def test_http_is_served_beside_or_without_mqtt(
    fake: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    http = HttpSettings(listen="0.0.0.0:0")
    for settings in (Settings(http=http), fake.model_copy(update={"http": http})):
        caplog.clear()
        with serve.gateways(settings, ScriptedEngine()) as running:
            assert running.http is not None
            assert (running.mqtt is None) is not settings.mqtt.is_on
            assert f"on {running.http.url}" in caplog.text
            assert f"anybody who reaches {running.http.url} may send requests" in caplog.text
        assert running.http.wait_ended(0.0)
    with pytest.raises(HttpError, match="it cannot listen there"):
        serve.run(Settings(http=HttpSettings(listen="203.0.113.1:1")))


def test_while_the_model_is_loaded_its_health_says_so(
    fake: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine = ScriptedEngine(loaded=False)
    engine.load(LoadRequest("scripted"))
    port = free_port()
    asked: list[int] = []

    def wait(client: ScriptedEngine, _terminal: object) -> None:
        for path in ("/health", "/v1/models", "/health"):
            asked.append(httpx2.get(f"http://127.0.0.1:{port}{path}", trust_env=False).status_code)
            if path != "/health":
                assert made == []
                assert f"serving scripted on http://127.0.0.1:{port}" not in caplog.text
                client.ready()

    monkeypatch.setattr(serve, "loading", lambda *_: nullcontext(engine))
    monkeypatch.setattr(serve, "wait_until_loaded", wait)
    monkeypatch.setattr(FakeGateway, "failure", "another server took over")
    http = HttpSettings(listen=str(port))
    assert serve.run(fake.model_copy(update={"http": http})) == ExitCode.FAILED
    assert asked == [503, 200, 200]
    assert made[0].calls == ["start", ("stop", None)]
    assert f"on http://127.0.0.1:{port}" in caplog.text


def test_a_port_that_is_taken_is_told_before_anything_is_loaded(
    fake: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "wait_until_loaded", lambda *_: pytest.fail("it waited"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = HttpSettings(listen=str(taken.getsockname()[1]))
        with pytest.raises(HttpError, match="it cannot listen there: Address already in use"):
            serve.run(fake.model_copy(update={"http": http}))
    assert made == []


def test_a_model_that_cannot_be_loaded_ends_what_was_served_meanwhile(
    fake: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*_: object) -> None:
        raise ModelLoadError("no such model")

    monkeypatch.setattr(serve, "wait_until_loaded", wait)
    with pytest.raises(ModelLoadError):
        serve.run(fake.model_copy(update={"http": HttpSettings(listen="0")}))
    assert made == []
    assert not any(thread.name == "http" for thread in threading.enumerate())
