from __future__ import annotations

import pytest

from engine.model.machine.driver import VARIABLE, visible_gpus

UUIDS = ("GPU-8932f937", "GPU-89a0b1c2", "GPU-5d5ba0d6", "MIG-c6d4f1ef", "MIG-cba663e8")


@pytest.mark.parametrize(
    ("stated", "places"),
    [
        (None, (0, 1, 2, 3, 4)),
        ("", ()),
        (" ", ()),
        ("2", (2,)),
        ("2,1", (2, 1)),
        ("0, 2", (0, 2)),
        ("0,2,-1,1", (0, 2)),
        ("-1", ()),
        ("-1,0", ()),
        ("0,5,1", (0,)),
        ("1,,0", (1,)),
        ("1,x,0", (1,)),
        ("+1,0gpu", (1, 0)),
        ("1,0,1", ()),
        ("NoDevFiles", ()),
        ("99999999999999999999", ()),
        ("GPU-5d5ba0d6", (2,)),
        ("GPU-5,GPU-893", (2, 0)),
        ("GPU-8", ()),
        ("GPU-5,GPU-8,GPU-893", (2,)),
        ("GPU-5,GPU-ffff,GPU-893", (2,)),
        ("GPU-5,GPU-5d", ()),
        ("GPU-5,0", (2,)),
        ("0,GPU-5", (0,)),
        ("MIG-cb", (4,)),
        ("MIG-cb,GPU-5", (4,)),
        ("gpu-5", ()),
    ],
)
def test_what_cuda_shows(stated: str | None, places: tuple[int, ...]) -> None:
    assert visible_gpus(UUIDS, {} if stated is None else {VARIABLE: stated}) == places


def test_a_machine_without_gpus_shows_none() -> None:
    for environment in ({}, {VARIABLE: "0"}, {VARIABLE: "GPU-1"}):
        assert visible_gpus((), environment) == ()


def test_a_gpu_whose_uuid_is_not_told_is_found_by_its_index() -> None:
    assert visible_gpus(("", "GPU-1"), {VARIABLE: "0"}) == (0,)
    assert visible_gpus(("", "GPU-1"), {VARIABLE: "GPU-1"}) == (1,)
