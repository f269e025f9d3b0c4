from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.bench.dataset import Ask, DatasetError, read_dataset
from app.bench.testbed import of_model
from app.process.serving import load_model
from app.settings.layers import load_settings
from engine.api.errors import InvalidRequestError


def write(folder: Path, text: str, name: str = "dataset") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_json_lines_are_read_by_arrival_and_counted_from_the_first(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"arrival": 7.5, "prompt_tokens": 9, "output_tokens": 3, "max_tokens": 8}\n'
        "\n"
        '{"arrival": 5, "prompt_tokens": 4, "output_tokens": 2, "user": "anna", "priority": -1}\n',
    )
    assert read_dataset(path) == [
        Ask(0.0, 4, 2, 2, user="anna", priority=-1),
        Ask(2.5, 9, 3, 8),
    ]


def test_the_azure_traces_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n",
    )
    first, second = read_dataset(path)
    assert first == Ask(0.0, 4808, 10, 10)
    assert second.arrival == pytest.approx(0.052, abs=1e-6)
    later = write(  # the traces of 2024 have a zone
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:01:00+00:00,2399,6\n",
    )
    assert [ask.arrival for ask in read_dataset(later)] == [0.0, pytest.approx(59.99007)]


def test_sharegpt_gives_prompts_and_the_lengths_of_replies(tmp_path: Path) -> None:
    entries = [
        {
            "id": "a",
            "conversations": [{"from": "human", "value": "abc"}, {"from": "gpt", "value": "de"}],
        },
        {"id": "b", "conversations": [{"from": "human", "value": "abc"}]},
        {"id": "c", "conversations": []},
        {"id": "d", "conversations": [{"value": " \n"}, {"value": "de"}]},
        {"id": "e", "conversations": [{"value": "abc"}, {"value": " "}]},
    ]
    path = write(tmp_path, json.dumps(entries))

    def encode(text: str) -> list[int]:
        if not text.strip():
            raise InvalidRequestError("prompt is empty", "prompt")
        return [1, *map(ord, text), 2]

    assert read_dataset(path, encode) == [Ask(0.0, 5, 2, 2, (1, 97, 98, 99, 2))]
    with pytest.raises(DatasetError, match="there is no tokenizer here to count their tokens"):
        read_dataset(path)


def test_a_sharegpt_file_is_read_by_the_codec_of_a_model(tmp_path: Path) -> None:
    entries = [{"conversations": [{"value": "Say it."}, {"value": "It was said."}]}]
    path = write(tmp_path, json.dumps(entries))
    bad = write(
        tmp_path, json.dumps([{"conversations": [{"value": "\ud800"}, {"value": "b"}]}]), "bad"
    )
    loaded = load_model(
        load_settings({"model": "builtin", "num_blocks": 64}).load_request(),
        lambda *_: None,
    )
    try:
        testbed = of_model(loaded)
        (ask,) = read_dataset(path, testbed.encode)
        with pytest.raises(DatasetError, match=r"bad, conversation 1: .* surrogate"):
            read_dataset(bad, testbed.encode)
    finally:
        loaded.close()
    assert ask.prompt_tokens == len(ask.prompt) > 0
    assert 0 < ask.output_tokens <= len("It was said.")


LINE = '{"prompt_tokens": 1, "output_tokens": 1}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
WRONG = {
    LINE + '{"prompt_tokens": 0, "output_tokens": 1}': (
        "dataset, line 2: prompt_tokens is 0; it should be greater than or equal to 1"
    ),
    '{"prompt_tokens": 4}': "dataset, line 1: output_tokens is missing; it must be stated",
    '{"prompt_tokens": 4, "output_tokens": "x"}': (
        "dataset, line 1: output_tokens is 'x'; it should be a valid integer"
    ),
    '{"prompt_tokens": 4, "output_tokens": 9, "max_tokens": 8}': (
        "dataset, line 1: max_tokens is 8; it must be at least output_tokens (9)"
    ),
    '{"prompt_tokens": 4, "output_tokens": 9, "arival": 8}': (
        "dataset, line 1: arival is not a field of a request; allowed are arrival, prompt_tokens, "
        "output_tokens, max_tokens, user, priority"
    ),
    '{"arrival": -1, "prompt_tokens": 4, "output_tokens": 9}': (
        "dataset, line 1: arrival is -1; it should be greater than or equal to 0"
    ),
    LINE + "nonsense": "dataset, line 2: Invalid JSON",
    "a,b\n1,2\n": (
        "dataset, line 1: the columns are a, b; they must have TIMESTAMP, ContextTokens, "
        "GeneratedTokens"
    ),
    AZURE
    + "2023-11-16 18:17:03.9799600,12,3\nsoon,4,5\n": "dataset, line 3: TIMESTAMP is 'soon'; it",
    AZURE
    + "2023-11-16 18:17:03.9799600,-12,3\n": "dataset, line 2: ContextTokens is '-12'; it should",
    '[{"id": 1}]': "dataset, conversation 1: conversations is missing; it must be stated",
    "[1": "dataset: ",
    "": "dataset: it is empty; at least one request is needed",
    " \n": "dataset: it is empty; at least one request is needed",
    AZURE: "dataset: it has no request; at least one is needed",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_what_is_wrong_is_told_with_its_place_and_what_is_allowed(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as caught:
        read_dataset(write(tmp_path, text), lambda text: [1])
    assert f"{tmp_path}/{message}" in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="nowhere: No such file or directory"):
        read_dataset(tmp_path / "nowhere")
