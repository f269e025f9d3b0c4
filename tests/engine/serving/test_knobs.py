"""Knobs of a host: whose errors they are, and when they take effect."""

from __future__ import annotations

import pytest

from engine.api.client import LoadRequest
from engine.api.errors import InvalidConfigError, UnavailableError
from engine.api.lifecycle import FinishReason
from engine.serving.host import EngineHost
from tests.support.asking import ask, read, say
from tests.support.scripted_loader import Loader


class TestKnobs:
    def test_without_a_model(self, host: EngineHost) -> None:
        for turn in (lambda: host.set_knobs({}, "me"), lambda: host.undo_knobs("me")):
            with pytest.raises(UnavailableError, match="no model is loaded"):
                turn()

    def test_errors_are_the_caller_s_and_change_nothing(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        with pytest.raises(InvalidConfigError) as caught:
            host.set_knobs({"paused": True, "max_num_seqs": 9}, "me")
        assert caught.value.message == "max_num_seqs is 9; it must be from 1 to 8"
        assert read(ask(host))[1].reason is FinishReason.LENGTH

    @pytest.mark.parametrize(("stated", "note"), [({}, "by this GPU"), ({"max_num_seqs": 8}, "")])
    def test_why_one_starts_where_it_does_is_said_unless_it_was_stated(
        self, host: EngineHost, loader: Loader, stated: dict[str, object], note: str
    ) -> None:
        loader.knob_notes = {"max_num_seqs": "by this GPU"}
        host.load(LoadRequest("a", knobs=stated))
        read(ask(host))
        snapshot = host.snapshot()
        assert snapshot is not None
        assert {knob.name: knob.note for knob in snapshot.knobs}["max_num_seqs"] == note

    def test_they_take_effect_without_traffic_and_can_be_undone(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        read(ask(host))
        host.set_knobs({"paused": True}, "me")
        waits = ask(host, "1")
        host.undo_knobs("you")
        assert read(waits)[0] == say("a", [1], 5)
