"""Inspection: checks that a file has the requests of a batch, line by line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from app.gateway.faults import Fault
from app.gateway.http.protocol.batches import BatchLine
from app.gateway.http.protocol.payload import format_value, read
from app.store.files import Line
from app.store.stored_batch import LineError

# Most reported errors; the rest of the file is not checked then.
MOST_ERRORS = 100
_DIGEST_BYTES = 16


class Inspection:
    """Checks one file. Bodies are not checked before they run: an error in a body becomes that
    request's answer, as it does without a batch.

    Args:
        endpoint: the endpoint that each request must name.
        check_model: raises a Fault for the name of a model that is not served; callable from any
            thread.

    Attributes:
        total: requests so far; blank lines do not count.
        errors: the errors found.
    """

    def __init__(self, endpoint: str, check_model: Callable[[str | None], object]) -> None:
        self._endpoint = endpoint
        self._check_model = check_model
        self._names: set[bytes] = set()
        self._served: set[str] = set()
        self.total = 0
        self.errors: list[LineError] = []

    @property
    def has_enough(self) -> bool:
        """Whether the number of errors has reached the limit."""
        return len(self.errors) >= MOST_ERRORS

    def check(self, lines: Sequence[Line]) -> None:
        """Check the next lines.

        Raises:
            Fault: 503, no model is loaded now, so that names cannot be checked.
        """
        for line in lines:
            if line.content.strip() and not self.has_enough:
                self.total += 1
                if (error := self._error(line)) is not None:
                    self.errors.append(error)

    def end(self) -> None:
        """Check, at the end of the file, that it has requests."""
        if not self.total:
            text = "the file is empty; it must have a request in each line"
            self.errors.append(LineError(code="empty_file", message=text))

    def _error(self, line: Line) -> LineError | None:
        try:
            asked = read(BatchLine, line.content)
        except Fault as fault:
            kind = "json_line" if fault.param is None else fault.param.partition(".")[0]
            return LineError(
                code=f"invalid_{kind}",
                message=fault.message,
                param=fault.param,
                line=line.number,
            )
        if asked.url != self._endpoint:
            text = f"url is {asked.url!r}; it must be that of the batch, {self._endpoint!r}"
            return LineError(
                code="mismatched_endpoint", message=text, param="url", line=line.number
            )
        digest = hashlib.blake2b(asked.custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._names:
            text = f"custom_id is {format_value(asked.custom_id)}, as in a line before;"
            text += " each must be another"
            return LineError(
                code="duplicate_custom_id", message=text, param="custom_id", line=line.number
            )
        self._names.add(digest)
        return self._error_of_model(asked.body.get("model"), line.number)

    def _error_of_model(self, name: object, number: int) -> LineError | None:
        if not isinstance(name, str) or name in self._served:
            return None
        try:
            self._check_model(name)
        except Fault as fault:
            if fault.code != 404:
                raise
            return LineError(
                code="model_not_found", message=fault.message, param="body.model", line=number
            )
        self._served.add(name)
        return None
