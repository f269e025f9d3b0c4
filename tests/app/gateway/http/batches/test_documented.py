"""docs/http.md beside what is read: each field has its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.gateway.http.protocol.batch_requests import BatchQuery, BatchRequest
from app.gateway.http.protocol.file_requests import FileQuery, UploadForm
from app.gateway.http.protocol.told import Told

DOCS = Path(__file__).parents[5] / "docs" / "http.md"
SECTION = DOCS.read_text(encoding="utf-8").split("## Batches\n")[1].split("\n## ")[0]
NAMED = [row.split("|")[1] for row in SECTION.splitlines() if row.startswith("| `")]


@pytest.mark.parametrize("kind", [UploadForm, FileQuery, BatchRequest, BatchQuery])
def test_each_field_has_its_row(kind: type[Told]) -> None:
    for name in kind.model_fields:
        assert any(f"`{name}`" in named for named in NAMED), name


def test_no_row_has_another_field() -> None:
    known = {
        name
        for kind in (UploadForm, FileQuery, BatchRequest, BatchQuery)
        for name in kind.model_fields
    }
    assert {name.strip(" `") for named in NAMED for name in named.split(",")} == known
