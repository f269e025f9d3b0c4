"""A client's request to a gateway that is served here, to its end."""

from __future__ import annotations

import json
from typing import Any

from tests.support.mqtt_peer import Peer
from tests.support.mqtt_serving import Serving

NODE = "llm/v1/default/node/box"


def finish(served: Serving, client: Peer, request_id: str) -> dict[str, Any]:
    """Step the engine until the newest attempt has ended."""

    def ended() -> list[dict[str, Any]]:
        attempts = [r["attempt"] for r in client.replies(request_id) if r["attempt"]]
        newest = max(attempts, default=1)
        return [end for end in client.ends(request_id) if end["attempt"] == newest]

    served.run(ended)
    return ended()[-1]


def status(client: Peer) -> Any:
    topic = f"{NODE}/status"
    if not any(at == topic for at, _, _ in client.messages):
        client.watch(topic)
        client.wait(lambda: any(at == topic for at, _, _ in client.messages))
    return json.loads([payload for at, payload, _ in client.messages if at == topic][-1])
