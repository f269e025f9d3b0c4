"""Recording: the step records of a run with its model's shape, stored as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from engine.api.errors import InvalidConfigError
from engine.api.telemetry import StepRecord
from engine.batch.shape import ModelShape

_SHAPE = TypeAdapter(ModelShape)
_RECORD = TypeAdapter(StepRecord)


@dataclass(frozen=True, slots=True)
class Recording:
    """Steps of one model, in order."""

    shape: ModelShape
    records: Sequence[StepRecord]

    def save(self, path: Path) -> None:
        """Write the shape as the first line, then a line for each record."""
        with path.open("wb") as file:
            file.write(_SHAPE.dump_json(self.shape) + b"\n")
            for record in self.records:
                file.write(_RECORD.dump_json(record) + b"\n")

    @staticmethod
    def load(path: Path) -> Recording:
        """Read the output of `save`.

        Raises:
            InvalidConfigError: the file cannot be read, or a line is malformed.
        """
        number, records = 1, []
        try:
            with path.open("rb") as file:
                shape = _SHAPE.validate_json(file.readline())
                for line in file:
                    number += 1
                    records.append(_RECORD.validate_json(line))
        except OSError as error:
            raise InvalidConfigError(f"{path} cannot be read: {error.strerror}", "fit") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the line"
            kind = "a model's shape" if number == 1 else "a step record"
            raise InvalidConfigError(
                f"line {number} of {path} is not {kind}: {place}: {json.dumps(first['msg'])}", "fit"
            ) from None
        return Recording(shape, records)
