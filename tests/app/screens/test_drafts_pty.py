"""Drafts in a real terminal: a paste of a megabyte, kill -9, and an editor."""

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


def test_an_editor_has_the_terminal_and_gives_it_back(terminal: Terminal) -> None:
    editor = terminal.folder / "editor"
    editor.write_text('#!/bin/sh\necho "Name the city:"\nread city\necho " of $city?" >> "$1"\n')
    editor.chmod(0o700)
    terminal.type(f"unset VISUAL; export EDITOR={editor}")
    terminal.press("Enter")
    process = terminal.start()
    terminal.see("Ask anything")
    terminal.type("What is the capital")
    terminal.press("M-e")
    terminal.see("Name the city:")
    assert terminal.tmux("display", "-p", "#{alternate_on} #{mouse_any_flag}") == "0 0\n"
    terminal.tmux("resize-window", "-x", "90", "-y", "28")
    terminal.type("France")
    terminal.press("Enter")
    terminal.see("❯ What is the capital of France?")
    terminal.press("Enter")
    terminal.see("tok · ttft")
    terminal.press("M-e")
    terminal.see("Name the city:")
    terminal.press("C-c")  # ends the editor alone
    terminal.see("editor was ended by SIGINT")
    terminal.press("M-e")
    terminal.see("Name the city:")
    process.terminate()  # the editor, too
    terminal.see("code=143")
    terminal.assert_restored()
