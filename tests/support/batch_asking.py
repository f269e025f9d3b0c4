"""Files and batches of tests: lines to upload, and what comes of them."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from openai.types import Batch

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def asking(text: str, **fields: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def line(name: str, body: dict[str, Any] | None = None, **fields: Any) -> str:
    told = {"custom_id": name, "method": "POST", "url": CHAT, "body": body or asking(name)}
    return json.dumps(told | fields)


def client_of(url: str, key: str = "any") -> OpenAI:
    """OpenAI's client, as it comes."""
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def start(client: OpenAI, lines: list[str], **fields: Any) -> Batch:
    """Upload these lines, and have them answered."""
    file = client.files.create(file=("asks.jsonl", "\n".join(lines).encode()), purpose="batch")
    asked = {"endpoint": CHAT, "completion_window": "24h", **fields}
    return client.batches.create(input_file_id=file.id, **asked)


def answers(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a file of answers by their ids; each of them once."""
    if file_id is None:
        return {}
    told = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
    found = {one["custom_id"]: one for one in told}
    assert len(found) == len(told)
    return found


def said(answer: dict[str, Any]) -> str:
    content = answer["response"]["body"]["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content
