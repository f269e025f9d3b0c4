"""LoadModel: a dialog for a model, known or typed in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.screens.dialogs.dialog import Entry, Finder
from app.screens.model_switch import ModelWish
from engine.model.catalog.registry import Availability, ModelEntry


class LoadModel(Finder[ModelWish]):
    """Asks for a model: one of the registry, or a folder, a GGUF file or a hub id that is typed in;
    and after it, the width of its weights. A model that cannot be loaded is refused here, with why.

    Args:
        entries: the models of the registry.
        refusal: why a wish cannot be fulfilled; empty if nothing speaks against it.

    Attributes:
        refused: why the last one that was chosen cannot be loaded; empty if that is not known.
    """

    GLOSS: ClassVar[dict[str, str]] = {
        "ready": "all files are on this machine",
        "needs download": "it is downloaded from the hub or a package index first",
        "owner/name": "any model of the hub; ./folder and ./file.gguf are on this machine",
        "int8, int4": "after a name: the width of its weights; none: as they are stored",
    }

    def __init__(self, entries: Sequence[ModelEntry], refusal: Callable[[ModelWish], str]) -> None:
        super().__init__()
        self._entries = entries
        self._refusal = refusal
        self.refused = ""
        self._states: dict[str, Availability] = {}

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label("Load model · running requests end on the present one")
            yield Entry(placeholder="a name, ./folder, ./file.gguf or owner/name; then int8, int4")
            yield Label("", id="refusal", markup=False)
            yield OptionList()

    def on_mount(self) -> None:
        self._list("")
        self.run_worker(self._find_states())

    def on_input_changed(self, event: Input.Changed) -> None:
        self._refuse("")
        self._list(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = ModelWish.read(event.value)
        is_named = "/" in typed.model or not self.marked
        self._accept(typed if is_named else replace(typed, model=self.marked))

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        typed = ModelWish.read(self.query_one(Input).value)
        self._accept(replace(typed, model=event.option_id or ""))

    def _accept(self, wish: ModelWish) -> None:
        self._refuse(self._refusal(wish) if wish.model else "")
        if wish.model and not self.refused:
            self.dismiss(wish)

    def _refuse(self, why: str) -> None:
        self.refused = why
        self.query_one("#refusal", Label).update(why)

    async def _find_states(self) -> None:
        """Find out which models are on this machine. This runs on a thread, because it imports the
        hub's library."""
        self._states = await asyncio.to_thread(
            lambda: {entry.name: entry.availability() for entry in self._entries}
        )
        self._list(self.query_one(Input).value)

    def _list(self, typed: str) -> None:
        wish = ModelWish.read(typed)
        words, width = wish.model.casefold().split(), wish.quantize
        found = [
            entry
            for entry in self._entries
            if all(word in f"{entry.name} {entry.source}".casefold() for word in words)
        ]
        # Models on this machine come first.
        found.sort(key=lambda entry: self._states.get(entry.name) is not Availability.READY)
        options = self.options
        options.clear_options()
        options.add_options(Option(self._line(entry, width), id=entry.name) for entry in found)
        options.highlighted = 0 if found else None

    def _line(self, entry: ModelEntry, quantize: str | None) -> Content:
        parts = (
            "as stored" if quantize == "none" else quantize,
            self._states.get(entry.name),
            entry.source,
        )
        about = " · ".join(part for part in parts if part)
        return Content.assemble((entry.name, "bold"), (f"  {about}", "$text-muted"))
