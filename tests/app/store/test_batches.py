"""Batches: whatever programs do to them in whatever order, each line has one answer."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.store.batches import Answer
from app.store.store import Store
from app.store.stored_batch import FOLLOWS, BatchStatus, LineError, StoredBatch, TokenCounts
from tests.app.store.test_files import DAY, content, put

USER = "ann"
NUM_LINES = 6


def create(store: Store, num_lines: int = NUM_LINES) -> StoredBatch:
    file = put(store, *[b"%d\n" % at for at in range(1, num_lines + 1)], user=USER)
    return store.batches.create(
        USER,
        endpoint="/v1/completions",
        input_file=file.id,
        completion_window="24h",
        seconds=DAY,
        metadata={"of": "tests"},
        keep_seconds=DAY,
    )


def answered(store: Store, file_id: str | None) -> list[bytes]:
    file = store.files.get(USER, file_id or "")
    return [] if file is None else content(store, file.number).splitlines()


def test_a_batch_ends_with_a_file_for_each_kind_of_answer(store: Store) -> None:
    batch = create(store)
    assert (batch.status, batch.metadata) == (BatchStatus.VALIDATING, {"of": "tests"})
    batch = store.batches.start(batch.id, NUM_LINES)
    assert batch.output is not None
    assert store.files.get(USER, batch.output) is None
    answers = [
        Answer(3, b"c\n", True, TokenCounts(5, 1, 7, 2)),
        Answer(1, b"a\n", True, TokenCounts(5, 0, 3, 1)),
        Answer(2, b"b\n", False),
    ]
    assert store.batches.answer(batch.id, answers) == 3
    # Another answer to a line is dropped, wherever the first one went.
    assert store.batches.answer(batch.id, [Answer(2, b"x\n", True), Answer(1, b"x\n", False)]) == 0
    lines = store.batches.input(batch, 0)
    assert [one.number for one in store.batches.unanswered(batch, lines)] == [4, 5, 6]
    store.batches.finalize(batch.id)
    batch = store.batches.end(batch.id, BatchStatus.COMPLETED)
    assert batch.ended is not None
    assert list(batch.moments) == ["in_progress", "finalizing", "completed"]
    assert (batch.total, batch.completed, batch.failed) == (6, 2, 1)
    assert batch.tokens == TokenCounts(10, 1, 10, 3)
    assert answered(store, batch.output) == [b"a", b"c"]
    assert answered(store, batch.faults) == [b"b"]


def test_a_file_with_nothing_in_it_is_none(store: Store) -> None:
    batch = store.batches.start(create(store).id, NUM_LINES)
    store.batches.cancel(USER, batch.id)
    batch = store.batches.end(batch.id, BatchStatus.CANCELLED)
    assert (batch.output, batch.faults) == (None, None)


def test_what_is_wrong_with_a_file_is_kept(store: Store) -> None:
    errors = (LineError(code="empty_file", message="nothing"), LineError(code="x", message="y"))
    batch = store.batches.fail(create(store).id, errors)
    assert (batch.status, batch.errors) == (BatchStatus.FAILED, errors)
    assert store.batches.cancel(USER, batch.id) == batch
    assert store.batches.cancel("bob", batch.id) is None


class Programs(RuleBasedStateMachine):
    """Two programs that share a store, and may end at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.programs: list[Store] = [Store(self.path), Store(self.path)]
        self.runs: list[set[str]] = [set(), set()]
        batch = create(self.programs[0])
        self.runs[0].add(batch.id)
        self.batch_id = batch.id
        self.kept: Counter[int] = Counter()

    @property
    def batch(self) -> StoredBatch:
        found = self.programs[0].batches.get(USER, self.batch_id)
        assert found is not None
        return found

    @rule(which=st.integers(0, 1))
    def take_over(self, which: int) -> None:
        mine = {one.id for one in self.programs[which].batches.adopt()}
        assert not mine & self.runs[1 - which], "both run it"
        self.runs[which] = mine

    @rule(which=st.integers(0, 1), leaves=st.booleans())
    def restart(self, which: int, leaves: bool) -> None:
        if leaves:
            self.programs[which].batches.leave()
        self.programs[which].close()
        self.programs[which] = Store(self.path)
        self.runs[which] = set()

    @rule()
    def begin(self) -> None:
        self.programs[0].batches.start(self.batch_id, NUM_LINES)

    @rule(
        which=st.integers(0, 1),
        numbers=st.lists(st.integers(1, NUM_LINES), max_size=3),
        is_well=st.booleans(),
    )
    def answer(self, which: int, numbers: list[int], is_well: bool) -> None:
        """Also by a program that does not run it any more."""
        before = self.batch
        answers = [Answer(number, b"%d\n" % number, is_well) for number in numbers]
        kept = self.programs[which].batches.answer(self.batch_id, answers)
        if before.output is None or before.ended or self.batch_id not in self.runs[which]:
            assert kept == 0
            return
        new = {*numbers} - {*self.kept}
        assert kept == len(new)
        self.kept.update(new)

    @rule()
    def cancel(self) -> None:
        self.programs[1].batches.cancel(USER, self.batch_id)

    @precondition(lambda self: len(self.kept) == NUM_LINES)
    @rule()
    def finalize(self) -> None:
        self.programs[0].batches.finalize(self.batch_id)

    @rule(status=st.sampled_from(BatchStatus))
    def end(self, status: BatchStatus) -> None:
        before = self.batch
        if not status.is_end or status is BatchStatus.FAILED:
            return
        after = self.programs[0].batches.end(self.batch_id, status)
        assert after.status is (status if status in FOLLOWS[before.status] else before.status)

    @invariant()
    def counts_are_those_of_the_lines(self) -> None:
        batch = self.batch
        assert batch.completed + batch.failed == len(self.kept)
        assert max(self.kept.values(), default=1) == 1
        assert batch.status.is_end is (batch.ended is not None)
        if batch.ended:
            store = self.programs[0]
            told = [*answered(store, batch.output), *answered(store, batch.faults)]
            assert sorted(told) == [b"%d" % number for number in sorted(self.kept)]
        elif batch.output is not None:
            lines = self.programs[0].batches.input(batch, 0)
            left = self.programs[0].batches.unanswered(batch, lines)
            assert {line.number for line in left} == {*range(1, NUM_LINES + 1)} - {*self.kept}

    def teardown(self) -> None:
        for program in self.programs:
            program.close()
        self.folder.cleanup()


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


def test_a_damaged_batch_keeps_no_other_from_going_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(Store(path)) as store:
        bad, good = create(store), create(store)
        store._db.write("UPDATE batch SET moments = '{' WHERE id = ?", (bad.id,))
    with closing(Store(path)) as store:
        assert [one.id for one in store.batches.adopt()] == [good.id]
