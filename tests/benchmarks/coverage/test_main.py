"""The command on a few of its rows, and what it counts."""

from __future__ import annotations

import pytest

from benchmarks.coverage.__main__ import main
from benchmarks.coverage.rows import MODELS
from benchmarks.coverage.survey import By, Outcome
from benchmarks.coverage.table import totals


def test_a_few_rows_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--kind", "text,format", "--only", "qwen3,xlstm,quanto"])
    output = capsys.readouterr().out
    lines = [line.split(maxsplit=4) for line in output.splitlines()[3:6]]
    assert lines[0][:4] == ["qwen3", "program", "0", "equal"]
    assert len(lines[0]) == 4  # with a cut prompt, a preemption and a prefix hit
    assert [line[:2] for line in lines[1:]] == [["xlstm", "refused"], ["quanto", "refused"]]
    assert "text types served: 1 of the 2 tried (program 1, refused 1)\n" in output
    assert output.endswith("the 25 as found on disk served: 1 of the 1 tried\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--kind", "image"], "--kind: 'image' is none; it must be of text, wrapper"),
        (["--kind", "text", "--only", "gemma3"], "--only: 'gemma3' is no row of the kind text"),
        (["--jobs", "0"], "--jobs: 0 is too few"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    output = capsys.readouterr()
    assert complaint in output.err
    assert not output.out


def test_one_counts_if_all_its_rows_agree() -> None:
    first, second = MODELS["SmolLM3, OLMo 3"]
    good = Outcome(first, By.PROGRAM, result="equal", agrees=True)
    bad = Outcome(second, By.MODULES, result="differs: 3/7 equal", agrees=False)
    assert totals([good]) == ["text types served: 1 of the 1 tried (program 1)"]
    assert totals([good, bad]) == [
        "text types served: 1 of the 2 tried (program 1, modules 1)",
        "the 25 as found on disk served: 0 of the 1 tried",
        "not served of these: SmolLM3, OLMo 3",
    ]
