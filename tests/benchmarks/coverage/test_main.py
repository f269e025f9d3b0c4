"""The command on a few of its rows, and what it counts."""

from __future__ import annotations

import pytest

from benchmarks.coverage.__main__ import main
from benchmarks.coverage.rows import MODELS, NAMES, Kind, Row, rows
from benchmarks.coverage.survey import By, Outcome
from benchmarks.coverage.table import HEAD, to_line, totals


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


def test_there_are_as_many_rows_as_the_totals_say() -> None:
    assert [len(NAMES[kind]) for kind in Kind] == [146, 54, 18, 2]
    assert len(MODELS) == 25
    known = set(rows(list(Kind)))
    assert all(row in known for needed in MODELS.values() for row in needed)


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


def test_a_full_kind_is_counted_by_its_number() -> None:
    refused = [Outcome(row, By.REFUSED, "no") for row in rows([Kind.FORMAT])]
    assert totals(refused)[0] == "formats served: 0 of 18 (refused 18)"


def test_a_line_has_the_reason_and_what_it_lacks() -> None:
    row = Row(Kind.TEXT, "mamba")
    outcome = Outcome(row, By.MODULES, "no rows", "equal", True, ("no preemption",))
    assert " ".join(to_line(outcome).split()) == "mamba modules all equal no rows; no preemption"


@pytest.mark.parametrize(
    ("outcome", "off"),
    [
        (Outcome(Row(Kind.TEXT, "a"), By.PROGRAM, off_path=0), "0"),
        (Outcome(Row(Kind.TEXT, "a"), By.PROGRAM, off_path=12), "12"),
        (Outcome(Row(Kind.TEXT, "a"), By.MODULES), "all"),
        (Outcome(Row(Kind.TEXT, "a"), By.REFUSED), ""),
    ],
)
def test_operations_off_the_fast_path_are_a_column(outcome: Outcome, off: str) -> None:
    right = HEAD.index("off") + len("off")
    assert to_line(outcome).ljust(right)[right - 4 : right].strip() == off
