"""Cards: what a node tells about itself."""

from __future__ import annotations

from typing import Literal

from app.gateway.mqtt.protocol.messages import Part, ServerMessage


class ModelInfo(Part):
    """The model that is served.

    Attributes:
        max_model_len: most tokens of a request, prompt and reply together.
    """

    name: str
    max_model_len: int
    dtype: str
    device: str


class Limits(Part):
    """What a request must keep to.

    Attributes:
        max_request_bytes: largest payload of a request.
        max_requests: unfinished ones, of all users.
        user_requests: unfinished ones, of a user for whom nothing else is set.
        user_per_minute: requests in 60 s, of such a user; 0 is no limit.
    """

    max_request_bytes: int
    max_requests: int
    user_requests: int
    user_per_minute: int


class NodeCard(ServerMessage):
    """A node, retained under its status topic.

    Attributes:
        boot_id: another one each time the program starts.
        state: `standby` answers nothing while an older node serves the pool; `draining` ends what
            it accepted and takes nothing new; `offline` is the last will, too.
        model: None while none is loaded.
        since: when it connected, in seconds since the epoch.
    """

    node: str
    pool: str
    boot_id: str
    state: Literal["online", "standby", "draining", "offline"]
    model: ModelInfo | None
    limits: Limits
    version: str
    since: float


class Percentiles(Part):
    """Of the last 60 s; None where nothing was measured."""

    p50: float | None
    p99: float | None


class MqttMetrics(Part):
    """Requests over MQTT.

    Attributes:
        running: accepted and unfinished.
        waiting: of them without a first token.
        accepted, finished, rejected: since the node started.
        first_token_ms: from the client's `sent_at` to the first token; it compares two clocks.
    """

    running: int
    waiting: int
    accepted: int
    finished: int
    rejected: int
    first_token_ms: Percentiles


class Metrics(ServerMessage):
    """A node's figures, once a second; None where there is none.

    Attributes:
        time: seconds since the epoch.
        running, waiting: requests of all sources.
        kv_used, kv_total: blocks of the KV cache.
        tokens_per_second: of output.
        ttft_ms, tpot_ms: of all sources.
    """

    node: str
    boot_id: str
    time: float
    running: int | None
    waiting: int | None
    kv_used: int | None
    kv_total: int | None
    tokens_per_second: float | None
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    mqtt: MqttMetrics
