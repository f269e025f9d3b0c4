"""Models, Health, Version: endpoints about the server itself."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault, doing
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.replies import created
from app.gateway.http.service import Service
from app.system.versions import version
from engine.api.status import EnginePhase


class Models(Endpoint):
    """The loaded model, under each of its names: /v1/models and /v1/models/{name}."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._created = created()

    async def answer(self, request: Request, send: Send) -> Response:
        self.service.asker(request)
        cards = self._cards()
        if (name := request.path_params.get("name")) is None:
            return JSONResponse({"object": "list", "data": list(cards.values())})
        if name not in cards:
            known = ", ".join(map(repr, cards)) or "none, for no model is loaded"
            text = f"model is {name!r}; served is {known}"
            raise Fault(404, text, "model", reason="another model")
        return JSONResponse(cards[name])

    def _cards(self) -> dict[str, dict[str, object]]:
        snapshot = self.service.client.snapshot()
        if snapshot is None:
            return {}
        card = snapshot.model
        names = [card.name, *sorted(self.service.names - {"*", card.name})]
        return {
            name: {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "batchdeck",
                "root": card.name,
                "max_model_len": card.max_model_len,
                "has_chat_template": card.has_chat_template,
            }
            for name in names
        }


class Health(Endpoint):
    """Whether requests are served: 200, or 503 with the reason. No key is needed for it."""

    async def answer(self, request: Request, send: Send) -> Response:
        status = self.service.client.status()
        self.service.admission.check_open()
        if status.phase is not EnginePhase.READY:
            text = f"no model is ready: {doing(status)}"
            raise Fault(503, text, reason="no model")
        return JSONResponse({"status": "ok", "model": status.model})


class Version(Endpoint):
    """The name and version of this program."""

    async def answer(self, request: Request, send: Send) -> Response:
        return JSONResponse({"version": version("batchdeck") or "unknown"})
