"""The training text: deterministic, well formed, and right where a machine can tell."""

from __future__ import annotations

import re
from itertools import islice

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from engine.builtin import MODEL_DIR
from engine.builtin.corpus import Chat, chats
from engine.builtin.train import encode

SUM = re.compile(r"(?<![\d.])(\d+) ([-+*/]) (\d+) = (\d+)")


@pytest.fixture(scope="module")
def sample() -> list[Chat]:
    return list(islice(chats(seed=5), 4000))


def test_same_seed_gives_the_same_chats(sample: list[Chat]) -> None:
    assert list(islice(chats(seed=5), 4000)) == sample
    assert list(islice(chats(seed=6), 10)) != sample[:10]


def test_no_template_is_left_unfilled(sample: list[Chat]) -> None:
    for chat in sample:
        for asked, reply in chat.exchanges:
            assert asked.strip()
            assert reply.strip() == reply != ""
            assert not re.search(r"[{}]|\[[^]]*\|", asked), asked
            if "```" not in reply:
                assert not re.search(r"[{}\[]", reply), reply


def test_every_sum_is_right(sample: list[Chat]) -> None:
    replies = [reply for chat in sample for _, reply in chat.exchanges]
    sums = [match.groups() for reply in replies for match in SUM.finditer(reply)]
    assert len(sums) > 500
    for a, sign, b, result in sums:
        x, y, z = int(a), int(b), int(result)
        assert z == {"+": x + y, "-": x - y, "*": x * y, "/": x / y if y else None}[sign]


def test_a_told_name_is_the_recalled_name(sample: list[Chat]) -> None:
    recalled = 0
    for chat in sample:
        told = chat.system or ""
        for asked, reply in chat.exchanges:
            if match := re.fullmatch(r"Your name is (\w+)\.", reply):
                assert match[1] in told
                recalled += 1
            told += " " + asked
    assert recalled > 100


def test_training_ids_are_those_of_the_chat_template(sample: list[Chat]) -> None:
    wrapped = AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    for chat in sample[:200]:
        text = wrapped.apply_chat_template(chat.messages(), tokenize=False)
        ids, targets = encode(tokenizer, chat)
        full = wrapped(text, add_special_tokens=False)["input_ids"]
        assert ids == full[:-1]
        learned = [target for target in targets if target >= 0]
        replies = "".join(f"{reply}<|im_end|>" for _, reply in chat.exchanges)
        assert tokenizer.decode(learned, skip_special_tokens=False) == replies
        assert all(t in (-100, nxt) for t, nxt in zip(targets, full[1:], strict=True))
