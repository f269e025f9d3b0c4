"""What is written and not sent, in a real terminal: a paste of a megabyte, and kill -9."""

from __future__ import annotations

from app.store.store import Store
from tests.app.screens.test_tui_pty import Terminal, pytestmark, terminal

__all__ = ["pytestmark", "terminal"]


def drafts(terminal: Terminal) -> list[str]:
    store = Store(terminal.data / "batchdeck.db")
    try:
        return [store.drafts.of(conversation.id).text for conversation in store.conversations()]
    finally:
        store.close()


def test_what_was_said_and_a_megabyte_that_is_written_survive_kill_9(terminal: Terminal) -> None:
    process = terminal.start()
    terminal.type("What is the capital of France?")
    terminal.press("Enter")
    terminal.see("tok · ttft")
    pasted = terminal.folder / "pasted"
    pasted.write_text("a line of the log\n" * 58_000)
    terminal.tmux("load-buffer", str(pasted))
    terminal.tmux("paste-buffer", "-p")
    terminal.see("paste 1 · 1 MiB")
    terminal.type("Sum it up.")
    terminal.wait(lambda: "Sum it up." in drafts(terminal), "the draft in the store")
    process.kill()
    terminal.see("code=137")
    terminal.type("reset")
    terminal.press("Enter")
    terminal.start()
    terminal.see("What is the capital of France?")
    terminal.see("Sum it up.")
    terminal.see("paste 1 · 1 MiB")
    terminal.see("too long")
    terminal.press("Enter")
    terminal.see("This message is")
    question, reply = terminal.messages()
    assert question == ("user", "What is the capital of France?", None)
    assert reply[1].strip()
