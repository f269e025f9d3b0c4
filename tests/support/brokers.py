"""Brokers: Mosquitto as a process of its own, to be stopped, killed and frozen."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

START_SECONDS = 10.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "mosquitto"


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Mosquitto:
    """Mosquitto on the loopback. A context that starts it, and stops it.

    Args:
        options: lines of its configuration. By default it lets everybody do everything; `listener`
            and what follows it may be repeated.
        config: a configuration file, used as it stands and from its folder; `port` is then its.
        port: to listen on; else a free one.
    """

    def __init__(
        self,
        options: Iterable[str] = ("allow_anonymous true",),
        *,
        config: Path | None = None,
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="mosquitto-"))
        self.log = self._folder / "log"
        if config is None:
            config = self._folder / "mosquitto.conf"
            # Started by root it would become another user, to whom our folders are closed.
            lines = ["user root", f"listener {self.port} 127.0.0.1", *options]
            # Else the kernel holds small packets back for 40 ms.
            lines.append("set_tcp_nodelay true")
            config.write_text("\n".join([*lines, ""]))
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> Self:
        assert self._process is None
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, "mosquitto is not installed: .ci/run does that"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-c", self._config.name],
                cwd=self._config.parent,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                raise AssertionError(f"mosquitto: exit code {code}\n{self.log.read_text()}")
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """End it by SIGTERM; it says goodbye to its clients and saves what it is set to save."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it, and start it again on the same port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Its connections stay open and nothing comes of them."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Stop it if it runs, and remove what it wrote."""
        self.kill()
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            process.wait(START_SECONDS)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class ExampleMosquitto(Mosquitto):
    """Mosquitto as examples/mosquitto has it: files, and the commands of its README, as they stand,
    but for the two ports.

    Attributes:
        port: for passwords; all users have `password`.
        certificate_port: for client certificates.
        certificates: folder with ca.crt, and those of batchdeck and alice.
    """

    password = "correct horse: battery/staple@%"
    users = ("batchdeck", "operator", "alice", "bob")

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="mosquitto-example-"))
        self.certificates = self._home / "certificates"
        self.certificate_port = free_port()
        super().__init__(config=self._home / "mosquitto.conf", port=free_port())
        made = shutil.ignore_patterns("certificates", "data", "passwords")
        shutil.copytree(EXAMPLE, self._home, ignore=made, dirs_exist_ok=True)
        text = (self._home / "mosquitto.conf").read_text()
        for old, new in ((8883, self.port), (8884, self.certificate_port)):
            assert text.count(f"\nlistener {old}\n") == 1
            text = text.replace(f"\nlistener {old}\n", f"\nlistener {new}\n")
        (self._home / "mosquitto.conf").write_text(text)
        self._call("./certificates.sh", "localhost", "batchdeck", "alice")
        (self._home / "data").mkdir()
        for number, user in enumerate(self.users):
            create = [] if number else ["-c"]
            self._call("mosquitto_passwd", *create, "-b", "passwords", user, self.password)
        if os.getuid() == 0:
            # Started by root it becomes this user.
            self._home.chmod(0o755)
            self._call("chown", "-R", "mosquitto:", "certificates", "data", "passwords")

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._home)

    def _call(self, *command: str) -> None:
        subprocess.run(command, cwd=self._home, check=True, stdout=subprocess.DEVNULL)
