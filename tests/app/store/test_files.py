"""Files of lines: whole or not there, each its owner's, and room that is given back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from app.store import database, files
from app.store.files import Line, StoredFile
from app.store.store import Store

DAY = 24 * 3600.0


def put(store: Store, *lines: bytes, user: str = "ann", keep_seconds: float = DAY) -> StoredFile:
    begun = store.files.create(user)
    store.files.append(begun.number, [Line(at, line) for at, line in enumerate(lines, start=1)])
    return store.files.finish(begun.number, "asks.jsonl", "batch", keep_seconds)


def content(store: Store, number: int) -> bytes:
    told, after = b"", 0
    while part := store.files.part(number, after):
        told += b"".join(line.content for line in part)
        after = part[-1].number
    return told


def sweep(store: Store) -> int:
    count = 0
    while store.files.sweep():
        count += 1
    return count


def test_a_file_is_read_in_parts_as_it_was_put(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_LINES", 3)
    monkeypatch.setattr(files, "PART_BYTES", 10)
    lines = [b"12345678901234\n", b"\r\n", b"a\n", b"b\n", b"c\n", b"1234567\n", b"no end"]
    file = put(store, *lines)
    assert file.num_bytes == sum(map(len, lines))
    assert content(store, file.number) == b"".join(lines)
    assert [line.number for line in store.files.part(file.number, 0)] == [1]
    assert [line.number for line in store.files.part(file.number, 1)] == [2, 3, 4]
    assert [line.number for line in store.files.part(file.number, 4)] == [5, 6]


def test_a_file_expires_so_long_after_it_was_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it took to come: that is what a client is told, in whole seconds."""
    begun = store.files.create("ann")
    monkeypatch.setattr("time.time", lambda: begun.created + 100.9)
    file = store.files.finish(begun.number, "asks.jsonl", "batch", 3601)
    assert file.expires is not None
    assert int(file.expires) == int(file.created) + 3601


def test_nobody_sees_anothers_or_what_is_not_whole(store: Store) -> None:
    whole, begun = put(store, b"x"), store.files.create("ann")
    assert store.files.get("ann", whole.id) == whole
    assert store.files.get("bob", whole.id) is None
    assert store.files.get("ann", begun.id) is None
    assert not store.files.delete("bob", whole.id)
    assert not store.files.delete("ann", begun.id)
    assert store.files.of_user("bob", after=None, most=9, purpose=None, newest=True) == []


def test_they_are_listed_from_where_one_was(store: Store) -> None:
    one, two, three = (put(store, b"x") for _ in range(3))

    def listed(after: StoredFile | None, most: int = 9, newest: bool = True) -> list[StoredFile]:
        return store.files.of_user("ann", after=after, most=most, purpose="batch", newest=newest)

    assert listed(None) == [three, two, one]
    assert listed(None, most=2) == [three, two]
    assert listed(two) == [one]
    assert listed(one, newest=False) == [two, three]
    assert store.files.of_user("ann", after=None, most=9, purpose="other", newest=True) == []


def test_what_is_deleted_or_expired_gives_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PART_LINES", 2)
    path = tmp_path / "store.db"
    with closing(Store(path)) as store:
        kept = put(store, b"kept")
        deleted = put(store, *[b"x" * 50_000] * 5)
        expired = put(store, *[b"x" * 50_000] * 5, keep_seconds=-1.0)
        assert store.files.delete("ann", deleted.id)
        assert store.files.get("ann", deleted.id) is None
        assert store.files.get("ann", expired.id) is None
        assert sweep(store) == 2 * 3
        assert content(store, deleted.number) == content(store, expired.number) == b""
        while store.shrink(256):
            pass
        assert content(store, kept.number) == b"kept"
    assert path.stat().st_size < 250_000


def test_what_a_dead_program_began_is_swept_away(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with closing(Store(path)) as living, closing(Store(path)) as store:
        begun = living.files.create("ann")
        living.files.append(begun.number, [Line(1, b"x")])
        other = Store(path)
        orphan = other.files.create("ann")
        other.files.append(orphan.number, [Line(1, b"x")])
        other.close()
        assert sweep(store) == 1
        assert content(store, orphan.number) == b""
        assert content(store, begun.number) == b"x"


def test_what_a_batch_reads_stays_until_that_has_ended(store: Store) -> None:
    file = put(store, b"x")
    batch = store.batches.create(
        "ann",
        endpoint="/v1/completions",
        input_file=file.id,
        completion_window="24h",
        seconds=DAY,
        metadata=None,
        keep_seconds=DAY,
    )
    assert store.files.delete("ann", file.id)
    assert sweep(store) == 0
    assert store.batches.input(batch, 0) == [Line(1, b"x")]
    store.batches.fail(batch.id, ())
    assert sweep(store) == 1
    assert store.batches.input(batch, 0) == []
    assert store.batches.forget(time.time() + 1.0) == 1
    assert store.batches.get("ann", batch.id) is None


def test_refused_uploads_are_swept_away_faster_than_they_come(store: Store) -> None:
    for _ in range(300):
        store.files.drop(store.files.create("ann").number)
    assert sweep(store) == 2
    assert store.files.usage("ann") == (0, 0, 0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, check=False).returncode:
        pytest.skip("a disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("opened_anew", [False, True])
def test_where_others_filled_the_disk_all_can_be_deleted(
    small_disk: Path, opened_anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite writes what it deletes to its log first, which is gone where nobody had it open."""
    monkeypatch.setattr(database, "DISK_LEFT", 1 << 20)
    path = small_disk / "batchdeck.db"
    first = Store(path)
    file = put(first, *(os.urandom(10_000) for _ in range(1000)))
    if opened_anew:
        first.close()
    with closing(Store(path) if opened_anew else first) as store:
        fill(small_disk / "another")
        assert store.files.delete("ann", file.id)
        while store.files.sweep() or store.shrink(256):
            pass
        (small_disk / "another").unlink()
        again = put(store, b"x")  # and the reserve is there again
        fill(small_disk / "another")
        assert store.files.delete("ann", again.id)
    assert path.stat().st_size < 1 << 20


def fill(path: Path) -> None:
    """Leave nothing of the disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_the_reserve_is_used_where_nothing_can_be_deleted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(store, b"x")
    base = store._db
    (reserve,) = base.path.parent.glob("*-reserve")
    assert reserve.stat().st_size == database.RESERVE
    write = base.write

    def full(*args: object) -> int:
        if reserve.exists():
            raise database.FullError("the disk is full")
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(base, "write", full)
    assert store.files.delete("ann", file.id)
    assert not reserve.exists()
    monkeypatch.setattr(base, "write", write)
    put(store, b"x")
    assert reserve.exists()
