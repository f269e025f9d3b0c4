"""docs/http.md beside what is read: each field has its row, and no row has another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.gateway.http.protocol.batches import BatchQuery, BatchRequest
from app.gateway.http.protocol.chat import ChatCompletionRequest
from app.gateway.http.protocol.completions import CompletionRequest
from app.gateway.http.protocol.file_requests import FileQuery, UploadForm
from app.gateway.http.protocol.messages import MessagesRequest
from app.gateway.http.protocol.payload import Payload
from app.gateway.http.protocol.responses import ResponsesRequest
from app.gateway.http.protocol.tokens import DetokenizeRequest, TokenizeRequest

DOCS = (Path(__file__).parents[4] / "docs" / "http.md").read_text(encoding="utf-8")
KINDS: dict[str, tuple[type[Payload], ...]] = {
    "Completions": (ChatCompletionRequest, CompletionRequest),
    "Responses": (ResponsesRequest,),
    "Messages": (MessagesRequest,),
    "Batches": (UploadForm, FileQuery, BatchRequest, BatchQuery),
}
READ = {
    "/v1/chat/completions": (ChatCompletionRequest,),
    "/v1/responses": (ResponsesRequest,),
    "/v1/messages": (MessagesRequest,),
    "both completions": (ChatCompletionRequest, CompletionRequest),
}


def section(heading: str) -> str:
    return DOCS.split(f"## {heading}\n")[1].split("\n## ")[0]


def names(kinds: tuple[type[Payload], ...]) -> set[str]:
    return {name for kind in kinds for name in kind.model_fields}


@pytest.mark.parametrize("heading", KINDS)
def test_each_field_has_its_row_and_no_row_has_another(heading: str) -> None:
    rows = section(heading).split("| field |")[1].split("\n\n")[0].splitlines()
    documented = {
        name.split(".")[0]
        for row in rows
        if row.startswith("| `")
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }
    assert documented == names(KINDS[heading])


def test_each_field_of_tokens_is_told() -> None:
    text = section("Tokens")
    for name in names((TokenizeRequest, DetokenizeRequest)) - {"model"}:
        assert re.search(rf"[`{{]{name}\b", text), name


def test_what_is_said_to_have_no_effect_is_not_read() -> None:
    rows = section("Endpoints").split("that have no effect |\n")[1].split("\n\n")[0]
    found = {}
    for row in rows.splitlines()[1:]:
        _, address, fields, _ = row.split("|")
        found[address.strip(" `")] = set(re.findall(r"`([a-z_]+)`", fields))
    assert found.keys() == READ.keys()
    for address, ignored in found.items():
        assert ignored
        assert not ignored & names(READ[address]), address
