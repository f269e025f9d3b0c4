"""Cards: the messages of a node about itself."""

from __future__ import annotations

from typing import Literal

from app.gateway.mqtt.protocol.replies import Part, ServerMessage


class ModelInfo(Part):
    """The model that is served.

    Attributes:
        max_model_len: the most tokens of a request, prompt and reply together.
        quantize: the width that its weights were quantized to at load.
        has_chat_template: whether it has a chat template. A model without one completes the text of
            a chat.
    """

    name: str
    max_model_len: int
    dtype: str
    quantize: str = "none"
    device: str
    has_chat_template: bool = True


class Limits(Part):
    """The limits of requests.

    Attributes:
        max_request_bytes: the largest payload of a request, in bytes.
        max_requests: most unfinished requests of all users together.
        user_requests: most unfinished requests of a user without a quota of their own.
        user_per_minute: most requests that such a user may begin in 60 s; 0 is no limit.
    """

    max_request_bytes: int
    max_requests: int
    user_requests: int
    user_per_minute: int


class NodeCard(ServerMessage):
    """The card of a node, which is retained at its status topic.

    Attributes:
        boot_id: identifies one start of the program.
        state: a node in `standby` answers nothing while an older node serves the pool. A node that
            is `draining` finishes its accepted requests and takes no new ones. `offline` is also
            the last will.
        model: the served model; None while none is loaded.
        since: when the node connected, in seconds since the epoch.
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
    """Percentiles of the last 60 s, in milliseconds; None without measurements."""

    p50: float | None
    p99: float | None


class MqttMetrics(Part):
    """A node's figures on requests over MQTT.

    Attributes:
        running: requests that are accepted and unfinished.
        waiting: how many of these have no first token.
        accepted, finished, rejected: requests since the node started.
        first_token_ms: from the client's `sent_at` to the first token, which compares two clocks;
            from the arrival of requests that state no `sent_at`.
    """

    running: int
    waiting: int
    accepted: int
    finished: int
    rejected: int
    first_token_ms: Percentiles


class Metrics(ServerMessage):
    """A node's figures, published once a second. A figure that is not known is None.

    Attributes:
        time: when the figures were measured, in seconds since the epoch.
        running, waiting: requests of all sources.
        kv_used, kv_total: blocks of the KV cache.
        tokens_per_second: output tokens of all sources.
        ttft_ms, tpot_ms: latencies of requests of all sources.
        mqtt: the figures on requests over MQTT alone.
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
