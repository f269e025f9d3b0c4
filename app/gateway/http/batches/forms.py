"""Files and batches as JSON objects in OpenAI's format."""

from __future__ import annotations

from dataclasses import asdict

from app.store.files import StoredFile
from app.store.stored_batch import BatchStatus, StoredBatch


def file_payload(file: StoredFile) -> dict[str, object]:
    """A complete file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.num_bytes,
        "created_at": int(file.created),
        "expires_at": None if file.expires is None else int(file.expires),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def batch_payload(batch: StoredBatch) -> dict[str, object]:
    """A batch, with its output files once it has ended."""
    tokens = batch.tokens
    has_ended = batch.ended is not None
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": [asdict(one) for one in batch.errors]}
        if batch.errors
        else None,
        "input_file_id": batch.input,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "output_file_id": batch.output if has_ended else None,
        "error_file_id": batch.faults if has_ended else None,
        "created_at": int(batch.created),
        "expires_at": int(batch.expires),
        **{
            f"{status}_at": int(batch.moments[status]) if status in batch.moments else None
            for status in BatchStatus
            if status is not BatchStatus.VALIDATING
        },
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
            "total_tokens": tokens.input + tokens.output,
        },
        "metadata": batch.metadata,
    }


def page_of(items: list[dict[str, object]], most: int) -> dict[str, object]:
    """A page of a list.

    Args:
        items: those of the page, and one more if there are further ones.
        most: items of the page.
    """
    page = items[:most]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > most,
    }
