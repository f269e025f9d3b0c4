"""Frame: the engine at one moment, as plain data for a browser."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import PurePath
from typing import Any

from app.gateway.control import knob_state
from app.gateway.faults import doing
from engine.api.block_map import BlockMap
from engine.api.effect import Effect
from engine.api.sampling import CHAT_SAMPLING
from engine.api.snapshot import Goodput, LatencyView, RequestView, Snapshot
from engine.api.status import EnginePhase, EngineStatus
from engine.api.telemetry import Distribution, StepRecord
from engine.api.waiting import Wait, in_words

# Their values name users.
_PRIVATE_KNOBS = ("user_weights",)

Plain = dict[str, Any]


class Frame:
    """One moment as all viewers see it. Each text is encoded once, at its first use.

    Args:
        epoch: grows when another model is loaded, because step numbers then restart.
        last_step: the newest step that has a record.
        knobs_version: grows when a knob is changed or gets another effective value.
    """

    def __init__(
        self,
        snapshot: Snapshot | None,
        status: EngineStatus,
        *,
        epoch: int,
        last_step: int,
        knobs_version: int,
    ) -> None:
        self.epoch = epoch
        self.last_step = last_step
        self.knobs_version = knobs_version
        self._snapshot = snapshot
        self._status = status
        self._bodies: dict[bool, bytes] = {}
        self._knobs: dict[bool, bytes] = {}

    def body(self, is_operator: bool) -> bytes:
        """The members of a JSON object, without steps and knobs."""
        if is_operator not in self._bodies:
            requests, effect = [], None
            if self._snapshot is not None:
                requests = [_request(one, is_operator) for one in self._snapshot.requests]
                effect = _effect(self._snapshot.effect, is_operator)
            payload = encoded({"requests": requests, "effect": effect})[1:-1]
            self._bodies[is_operator] = (
                self._status_body(is_operator) + self._common + b"," + payload
            )
        return self._bodies[is_operator]

    def knobs(self, is_operator: bool) -> bytes:
        """The state of the knobs, as JSON: the same as the answer to a control message."""
        if is_operator not in self._knobs:
            payload: Plain = {} if self._snapshot is None else knob_state(self._snapshot)
            self._knobs[is_operator] = encoded(payload if is_operator else _impersonal(payload))
        return self._knobs[is_operator]

    @cached_property
    def _common(self) -> bytes:
        engine = None if self._snapshot is None else _engine(self._snapshot)
        return encoded({"epoch": self.epoch, "engine": engine})[1:-1]

    def _status_body(self, is_operator: bool) -> bytes:
        status = self._status
        model, detail = status.model, status.detail
        if not is_operator:
            # Both may name files.
            model = PurePath(model).name
            detail = "" if status.phase is EnginePhase.READY else doing(status)
        payload: Plain = {
            "phase": status.phase,
            "model": model,
            "detail": detail,
            "loaded_bytes": status.loaded_bytes,
            "total_bytes": status.total_bytes,
        }
        return encoded({"status": payload})[1:-1] + b","


def step_data(record: StepRecord) -> Plain:
    """One step. Times in seconds."""
    return {
        "step": record.step,
        "seconds": number(record.duration),
        "forward": number(record.times.forward),
        "prefill_tokens": record.prefill_tokens,
        "decode_tokens": record.decode_tokens,
        "prefill_rows": record.prefill_rows,
        "decode_rows": record.decode_rows,
        "output_tokens": record.output_tokens,
        "budget": record.budget,
        "policy": record.policy,
        "running": record.running,
        "waiting": record.waiting,
        "admitted": len(record.admitted),
        "finished": len(record.finished),
        "preempted": len(record.preempted),
        "hit_tokens": record.prefix_hit_tokens,
        "error": record.error,
    }


def number(value: float | None) -> float | None:
    """The value for JSON: NaN becomes null, and times are rounded to a microsecond."""
    return None if value is None or not math.isfinite(value) else round(value, 6)


def encoded(data: object) -> bytes:
    """Compact JSON in ASCII, because quoted texts may be invalid Unicode."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def _engine(snapshot: Snapshot) -> Plain:
    model, config = snapshot.model, snapshot.config
    return {
        "time": number(snapshot.time),
        "step": snapshot.step,
        "model": {
            "name": model.name,
            "architecture": model.architecture,
            "parameters": model.num_params,
            "dtype": model.dtype,
            "quantize": model.quantize,
            "off_path": [asdict(one) for one in model.off_path],
            "off_kernels": model.off_kernels,
            "device": model.device,
            "max_model_len": model.max_model_len,
            "switches_thinking": model.switches_thinking,
            "has_chat_template": model.has_chat_template,
            "chat_sampling": {} if model.chat_sampling == model.sampling else dict(CHAT_SAMPLING),
        },
        "block_size": config.block_size,
        "running": snapshot.num_running,
        "waiting": snapshot.num_waiting,
        "head_wait": _reason(snapshot.head_wait, tells_all=False),
        "stalled": snapshot.stalled,
        "blocks": _blocks(snapshot.blocks),
        "latency": _latency(snapshot.latency),
        "goodput": _goodput(snapshot.goodput),
        "totals": {
            name: getattr(snapshot.totals, name) for name in snapshot.totals.__dataclass_fields__
        },
    }


def _blocks(blocks: BlockMap) -> Plain:
    return {
        "total": blocks.num_blocks,
        "free": blocks.free,
        "cached": blocks.cached,
        "used": blocks.used,
        "shared": blocks.shared,
        "reserved": blocks.reserved,
        "pinned": blocks.pinned,
        "host": blocks.host_blocks,
        "host_used": blocks.host_used,
        "segments": blocks.segments,
    }


def _latency(latency: LatencyView) -> Plain:
    of = ("ttft", "tpot", "itl", "queue", "e2e")
    return {"window": latency.window, **{one: _spread(getattr(latency, one)) for one in of}}


def _spread(of: Distribution) -> Plain:
    return {
        "count": of.count,
        "mean": number(of.mean),
        "p50": number(of.p50),
        "p99": number(of.p99),
    }


def _goodput(good: Goodput | None) -> Plain | None:
    if good is None:
        return None
    return {
        "window": good.window,
        "ttft_target": good.ttft_target,
        "tpot_target": good.tpot_target,
        "share": number(good.share),
        "rate": number(good.rate),
        "late": good.late,
    }


def _request(view: RequestView, tells_all: bool) -> Plain:
    """One request. The user, and all that users wrote, is for operators."""
    payload: Plain = {
        "ordinal": view.ordinal,
        "state": view.state,
        "prefilling": view.prefilling,
        "wait": _reason(view.wait, tells_all),
        "priority": view.priority,
        "prompt_tokens": view.prompt_tokens,
        "cached_tokens": view.cached_tokens,
        "computed_tokens": view.computed_tokens,
        "output_tokens": view.output_tokens,
        "max_output_tokens": view.max_output_tokens,
        "blocks": view.blocks,
        "shared_blocks": view.shared_blocks,
        "reserved_blocks": view.reserved_blocks,
        "queue": number(view.queue),
        "ttft": number(view.ttft),
        "tpot": number(view.tpot),
        "itl_p99": number(view.itl_p99),
        "preemptions": view.preemptions,
        "finish_reason": view.finish_reason,
    }
    if tells_all:
        payload |= {
            "id": view.request_id,
            "user": view.origin.user,
            "source": view.origin.source,
            "title": view.origin.title,
            "error": view.error,
        }
    return payload


def _effect(effect: Effect | None, tells_all: bool) -> Plain | None:
    """The effect of the last change of knobs. Knobs that name users are for operators."""
    if effect is None:
        return None
    obstacle = effect.obstacle
    return {
        "changed": {
            name: {"before": before, "after": after}
            for name, (before, after) in effect.change.changed.items()
            if tells_all or name not in _PRIVATE_KNOBS
        },
        "obstacle": None
        if obstacle is None
        else {**obstacle._asdict(), "was": _exact(obstacle.was), "now": _exact(obstacle.now)},
        "figures": [
            {
                "name": pair.before.name,
                "unit": pair.before.unit,
                "before": _exact(pair.before.value),
                "since": _exact(pair.since.value),
                "few": pair.few,
            }
            for pair in effect.pairs()
        ],
    }


def _exact(value: float | None) -> float | None:
    """The value for JSON, as the terminal shows it: rounded, it could have another last digit."""
    return None if value is None or not math.isfinite(value) else value


def _reason(wait: Wait | None, tells_all: bool) -> str:
    """Why a request waits, without text that users may have written."""
    if wait is not None and wait.of and not tells_all:
        return wait.cause.value.replace("_", " ")
    return in_words(wait)


def _impersonal(payload: Mapping[str, Any]) -> Plain:
    """The state of the knobs, without user names."""
    if not payload:
        return {}
    knobs = {
        name: {**knob, "requested": "", "effective": ""} if name in _PRIVATE_KNOBS else knob
        for name, knob in payload["knobs"].items()
    }
    history = [
        {
            **change,
            "who": "",
            "changed": {k: v for k, v in change["changed"].items() if k not in _PRIVATE_KNOBS},
        }
        for change in payload["history"]
    ]
    return {**payload, "knobs": knobs, "history": history}
