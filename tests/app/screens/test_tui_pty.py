"""The interface in a real terminal: tmux, with the built-in model in the same process."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from app.store.store import Store
from engine.api.lifecycle import FinishReason

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="tmux is not installed; it is the terminal of this test"
)


class Terminal:
    """A shell in a tmux of its own."""

    def __init__(self, folder: Path) -> None:
        self._socket = f"batchdeck-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.data = folder / "data"
        size = ("-x", "100", "-y", "30")
        shell = "env PS1='$ ' bash --norc --noprofile"
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(ROOT), shell)
        self.wait(lambda: "$" in self.screen())

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-u", "-L", self._socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], capture_output=True)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, condition: Callable[[], bool], what: str = "") -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{self.screen()}"
            time.sleep(0.05)

    def see(self, text: str) -> None:
        """Wait until `text` is on the screen."""
        self.wait(lambda: text in self.screen(), repr(text))

    def start(
        self, code: str = "from app.commands.cli import main; main()", redirection: str = ""
    ) -> psutil.Process:
        """Start the interface, the terminal's settings noted before and after."""
        python = shlex.quote(sys.executable)
        environment = f"TUI_DATA_DIR={self.data} TUI_LOG_FILE={self.folder}/log TUI_TEMPERATURE=0"
        command = f'{environment} {python} -c "{code}" {redirection}'
        script = self.folder / "script"
        script.write_text(
            f"stty -g > {self.folder}/before\n{command}\n"
            f'echo "code=$?"\nstty -g > {self.folder}/after\n'
        )
        self.type(f"clear; . {script}")
        self.press("Enter")
        # Of one that was killed the screen stays, until this shell has cleared it.
        self.wait(lambda: bool(self._programs()), "the program")
        self.see("❯")
        programs = self._programs()
        ids = {one.pid for one in programs}
        (process,) = (one for one in programs if one.ppid() not in ids)
        return process

    def _programs(self) -> list[psutil.Process]:
        """The program, and the process that encodes for it."""
        shell = psutil.Process(int(self.tmux("display", "-p", "#{pane_pid}")))
        found = []
        for child in shell.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # such as stty, which has ended meanwhile
                if "python" in child.name():
                    found.append(child)
        return found

    def assert_restored(self) -> None:
        """The terminal is as it was, and the shell can be used."""
        self.type("echo us''able")
        self.press("Enter")
        self.see("usable")
        modes = self.tmux("display", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}")
        assert modes == "0 1 0\n"
        assert (self.folder / "before").read_text() == (self.folder / "after").read_text()

    def messages(self) -> list[tuple[str, str, FinishReason | None]]:
        """The stored messages of the one conversation."""
        store = Store(self.data / "batchdeck.db")
        try:
            (conversation,) = store.conversations()
            kept = store.messages(conversation.id)
            return [(m.role, m.content, m.finish_reason) for m in kept]
        finally:
            store.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_start_chat_resize_quit(terminal: Terminal) -> None:
    # It is on the screen where standard error goes to a file, too.
    errors = terminal.folder / "errors"
    terminal.start(redirection=f"2> {errors}")
    # At once, as one types into a shell: the model is not there yet.
    terminal.type("What is the capital of France?")
    terminal.press("Enter")
    terminal.see("queued")
    terminal.see("tok · ttft")

    terminal.tmux("resize-window", "-x", "160", "-y", "48")
    terminal.see("Latency 1m")
    terminal.see("What is the capital of France?")
    terminal.tmux("resize-window", "-x", "80", "-y", "24")
    terminal.wait(lambda: "TTFT" in terminal.screen().splitlines()[22], "the small layout")
    terminal.press("F2")
    terminal.see("7 Log")
    terminal.press("F2")
    terminal.see("❯")

    # Escape sequences of a terminal without the kitty protocol.
    terminal.type("two")
    terminal.press("M-Enter")
    terminal.type("lines")
    terminal.press("C-n", "M-1")
    terminal.see("lines")
    assert "two" in terminal.screen()

    terminal.press("C-q")
    terminal.see("code=0")
    terminal.assert_restored()
    assert errors.read_text() == ""
    (question, reply) = terminal.messages()
    assert question == ("user", "What is the capital of France?", None)
    assert reply[1].strip()
    assert reply[2] in (FinishReason.STOP, FinishReason.LENGTH)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_restores_the_terminal_and_keeps_the_chat(
    terminal: Terminal, number: signal.Signals
) -> None:
    process = terminal.start()
    terminal.type("Hello")
    terminal.press("Enter")
    terminal.see("queued")
    process.send_signal(number)
    terminal.see(f"code={128 + number}")
    terminal.assert_restored()
    assert terminal.messages() == [
        ("user", "Hello", None),
        ("assistant", "", FinishReason.ABORT),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_the_model_loads_whatever_the_loader_does(
    terminal: Terminal, number: signal.Signals
) -> None:
    loading = terminal.folder / "loading"
    code = (
        "from pathlib import Path; from tests.support import stuck; "
        f"stuck.run(Path('{loading}').touch)"
    )
    process = terminal.start(code)
    terminal.wait(loading.exists, "the loader")
    process.send_signal(number)
    terminal.see(f"code={128 + number}")
    terminal.assert_restored()


def test_it_is_suspended_and_comes_back(terminal: Terminal) -> None:
    terminal.start()
    terminal.type("half a thought")
    terminal.see("half a thought")
    terminal.press("C-z")
    terminal.see("Stopped")
    terminal.type("echo us''able")
    terminal.press("Enter")
    terminal.see("usable")
    modes = terminal.tmux("display", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}")
    assert modes == "0 1 0\n"
    terminal.type("fg")
    terminal.press("Enter")
    # All of it is painted anew, what has not changed too.
    terminal.see("half a thought")
    terminal.see("Help")
    terminal.see("+ new")
    terminal.type(", and the rest")
    terminal.see("half a thought, and the rest")
    terminal.press("C-q")
    terminal.wait(lambda: "❯" not in terminal.screen(), "the end")


# F1 has the loop hang: in a call that gives the interpreter to other threads, or in one that does
# so only when it is taken away.
HANGING = """
import os
from app.commands.cli import main
from app.process import watchdog
from app.screens.tui import Tui
watchdog.PATIENCE_SECONDS = 0.5
pipe, other = os.pipe()
def block(app): os.read(pipe, 1)
def spin(app):
    while True: pass
Tui.action_help = {how}
main()
"""


@pytest.mark.parametrize(
    ("how", "number"),
    [("block", signal.SIGTERM), ("spin", signal.SIGINT), ("spin", signal.SIGHUP)],
)
def test_a_signal_ends_it_where_its_loop_hangs(
    how: str, number: signal.Signals, terminal: Terminal
) -> None:
    process = terminal.start(HANGING.replace("{how}", how))
    terminal.type("Hello")
    terminal.press("Enter")
    terminal.see("tok · ttft")
    terminal.type("and more")
    terminal.see("and more")
    terminal.press("F1")
    process.send_signal(number)
    terminal.see(f"code={128 + number}")
    terminal.see("it did not end within 0.5 s")
    terminal.assert_restored()
    question, reply = terminal.messages()
    assert question == ("user", "Hello", None)
    assert reply[2] is not None


@pytest.mark.parametrize("sees", [b"\x1b[?1049h", "❯".encode()], ids=["first", "painted"])
def test_a_terminal_that_is_gone_without_a_hang_up_ends_it(sees: bytes, tmp_path: Path) -> None:
    """It is not the terminal of its session, and the hang-up is ignored as below `nohup`: it spun
    at 0.7 of a core until kill -9 where it had not painted yet."""
    ours, theirs = os.openpty()
    places = {"TUI_DATA_DIR": str(tmp_path / "data"), "TUI_LOG_FILE": str(tmp_path / "log")}
    with subprocess.Popen(
        [sys.executable, "-c", "from app.commands.cli import main; main()"],
        cwd=ROOT,
        env={**os.environ, **places, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as process:
        try:
            os.close(theirs)
            seen = b""
            while sees not in seen:
                seen += os.read(ours, 4096)
            os.close(ours)
            assert process.wait(PATIENCE) == 128 + signal.SIGHUP
        finally:
            process.kill()


def test_a_terminal_that_goes_away_ends_it(terminal: Terminal) -> None:
    process = terminal.start()
    terminal.type("Hello")
    terminal.press("Enter")
    terminal.see("queued")
    terminal.close()
    psutil.wait_procs([process], timeout=PATIENCE)
    assert not process.is_running()
    assert terminal.messages()[1][2] is FinishReason.ABORT
