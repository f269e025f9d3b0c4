"""Structures are compiled where they can do no harm first, and once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.errors import EngineError, InvalidRequestError
from engine.api.structure import Structure
from engine.structure.grammar import Grammar
from engine.structure.lead import NO_LEAD, Lead
from engine.structure.rules import write
from engine.text import grammars
from engine.text.codec import ChatCodec
from engine.text.encoder import ChatEncoder
from engine.text.grammars import Grammars
from engine.text.job import StructureJob, TextJob, WordsJob
from engine.text.vocabulary import Vocabulary
from tests.support.encoding import Here, start_pool
from tests.support.structures import ENDS, SIZE, SPECIAL, UTF8, allowed, ids_of

KEY = "model@revision:float32"
YES = Structure.of({"choice": ["yes", "no"]})


class Trial:
    """Compiles nothing, but for what is refused."""

    def __init__(self) -> None:
        self.tried: list[Structure] = []
        self.refusal: EngineError | None = None

    def words(self) -> list[bytes]:
        return UTF8

    def try_structure(
        self, structure: Structure, lead: Lead, ends: Sequence[int], size: int
    ) -> str:
        assert (tuple(ends), size) == (ENDS, SIZE)
        self.tried.append(structure)
        if self.refusal is not None:
            raise self.refusal
        return write(structure, lead)


def test_a_structure_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "MAX_GRAMMARS", 2)
    trial = Trial()
    some = Grammars(Here(trial), SPECIAL, ENDS, SIZE)
    first = some.grammar(YES, NO_LEAD)
    assert allowed(first.matcher(ids_of("ye"))) == {ord("s")}
    assert some.grammar(Structure.of({"choice": ["yes", "no"]}), NO_LEAD) is first
    other = Structure.of({"regex": "a"})
    some.grammar(other, NO_LEAD)
    assert some.grammar(YES, NO_LEAD) is first
    some.grammar(YES, Lead('start: "x" @body'))
    assert trial.tried == [YES, other, YES]
    assert some.grammar(YES, NO_LEAD) is first
    some.grammar(other, NO_LEAD)  # It was the one that was used least lately.
    assert trial.tried == [YES, other, YES, other]


def test_what_fails_on_trial_is_not_compiled_here() -> None:
    trial = Trial()
    trial.refusal = InvalidRequestError("it takes too long", "structure")
    some = Grammars(Here(trial), SPECIAL, ENDS, SIZE)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="it takes too long"):
            some.grammar(YES, NO_LEAD)
    assert trial.tried == [YES, YES]
    assert some._compiler is None


def test_a_model_without_an_end_is_given_no_structure() -> None:
    trial = Trial()
    with pytest.raises(InvalidRequestError, match="no token that ends a reply") as caught:
        Grammars(Here(trial), SPECIAL, (SIZE,), SIZE).grammar(YES, NO_LEAD)
    assert (caught.value.param, trial.tried) == ("structure", [])


def test_a_model_is_ready_for_structures_when_it_is_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = Grammars(Here(Trial()), SPECIAL, ENDS, SIZE)
    some.prepare()
    ready = some._compiler
    assert ready is not None
    some.grammar(YES, NO_LEAD)
    assert some._compiler is ready
    Grammars(Here(Trial()), SPECIAL, (), SIZE).prepare()
    assert not caplog.messages
    broken = Trial()
    broken.words = lambda: 1 // 0  # type: ignore[method-assign]
    Grammars(Here(broken), SPECIAL, ENDS, SIZE).prepare()
    assert "structures of replies cannot be compiled: ZeroDivisionError" in caplog.text


def test_words_come_as_they_went() -> None:
    job: WordsJob = WordsJob()
    for words in ([], [b""], [b"a", b"", "日本".encode(), b"\xff" * 300]):
        encoder: Any = SimpleNamespace(words=lambda words=words: words)
        assert job.read(job.answer(encoder)) == words


def test_a_process_tries_what_is_compiled_here(byte_level: PreTrainedTokenizerFast) -> None:
    vocabulary = Vocabulary(byte_level)
    pool = start_pool(byte_level, KEY)
    assert pool.run(WordsJob()) == ChatEncoder(byte_level, KEY).words()
    (end,) = byte_level.encode("<|im_end|>", add_special_tokens=False)
    size = vocabulary.size + 3
    some = Grammars(pool, vocabulary.special, [end], size)
    grammar = some.grammar(YES, NO_LEAD)
    ids = byte_level.encode("no", add_special_tokens=False)
    assert allowed(grammar.matcher(ids), size) == {end}
    with pytest.raises(InvalidRequestError, match=r"structure\.regex cannot be followed"):
        some.grammar(Structure.of({"regex": "(a"}), NO_LEAD)
    assert len(pool.run(TextJob("a", False))) == 1
    pool.close()


# Compiling it takes far more than half a second.
QUADRATIC = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4_200)}}


def test_what_takes_too_long_is_refused(byte_level: PreTrainedTokenizerFast) -> None:
    pool = start_pool(byte_level, KEY, 0.5)
    structure = Structure.of({"json_schema": QUADRATIC})
    with pytest.raises(InvalidRequestError) as caught:
        pool.run(StructureJob(structure, NO_LEAD, (0,), 400))
    assert caught.value.message == (
        "the structure cannot be compiled: the compiler of grammars did not finish within 0.5 s"
    )
    assert caught.value.param == "structure"
    assert pool.run(TextJob("", False)) == []  # by another process
    pool.close()


def test_what_takes_too_much_memory_is_refused() -> None:
    error = StructureJob(YES, NO_LEAD, (0,), 5).greedy()
    assert error.message == (
        "compiling the structure needs more than 512 MiB of memory in the compiler of grammars"
    )
    assert error.param == "structure"


class TestCodec:
    """The end of the prompt decides how a reply may begin."""

    @pytest.fixture
    def tokenizer(self, byte_level: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        byte_level.chat_template = "{{ '<think></think>' }}"  # it thinks
        return byte_level

    @pytest.fixture
    def codec(self, tokenizer: PreTrainedTokenizerFast) -> ChatCodec:
        vocabulary = Vocabulary(tokenizer)
        encoder = ChatEncoder(tokenizer, KEY)
        self.size = vocabulary.size
        (self.end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
        some = Grammars(Here(encoder), vocabulary.special, [self.end], self.size)
        return ChatCodec(vocabulary, Here(encoder), KEY, some)

    def may_say(self, tokenizer: PreTrainedTokenizerFast, grammar: Grammar, text: str) -> bool:
        """Whether a reply may be just this text."""
        ids = tokenizer.encode(text, add_special_tokens=False)
        return self.end in allowed(grammar.matcher(ids), self.size)

    @pytest.mark.parametrize(
        ("prompt", "plain", "inside", "whole"),
        [
            ("Why?\n", True, False, True),
            ("Why?\n<think>\n", False, True, False),
            ("Why?\n<think>\n\n</think>\n\n", True, False, False),
        ],
    )
    def test_the_structure_binds_what_is_said(
        self,
        codec: ChatCodec,
        tokenizer: PreTrainedTokenizerFast,
        prompt: str,
        plain: bool,
        inside: bool,
        whole: bool,
    ) -> None:
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        grammar = codec.grammar(YES, ids, 0)
        assert self.may_say(tokenizer, grammar, "no") == plain
        assert self.may_say(tokenizer, grammar, "Let me see.</think>no") == inside
        assert self.may_say(tokenizer, grammar, "<think>Let me see.</think>\n\nno") == (
            whole or inside
        )
        assert not self.may_say(tokenizer, grammar, "maybe")

    def test_a_reply_that_was_cut_off_is_followed_from_its_beginning(
        self, codec: ChatCodec, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        ids = tokenizer.encode("Why?\n<think>\n", add_special_tokens=False)
        begun = tokenizer.encode("Let me see.</think>\n\nn", add_special_tokens=False)
        grammar = codec.grammar(YES, [*ids, *begun], len(begun))
        assert self.may_say(tokenizer, grammar, "o")
        assert not self.may_say(tokenizer, grammar, "no")
        other = tokenizer.encode("</think>maybe", add_special_tokens=False)
        with pytest.raises(InvalidRequestError, match="does not fit the reply") as caught:
            codec.grammar(YES, [*ids, *other], len(other))
        assert caught.value.param == "structure"

    def test_some_models_are_given_none(self, tokenizer: PreTrainedTokenizerFast) -> None:
        codec = ChatCodec(Vocabulary(tokenizer), Here(ChatEncoder(tokenizer, KEY)), KEY)
        with pytest.raises(InvalidRequestError, match="structure is stated") as caught:
            codec.grammar(YES, [1], 0)
        assert caught.value.param == "structure"
