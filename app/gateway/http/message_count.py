"""MessageCount: /v1/messages/count_tokens, in Anthropic's form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.http.anthropic_endpoint import AnthropicEndpoint
from app.gateway.http.protocol.messages import MessageCountRequest


class MessageCount(AnthropicEndpoint):
    """The number of tokens in the prompt of a chat."""

    kind = MessageCountRequest

    async def answer(self, request: Request, send: Send) -> Response:
        service = self.service
        user, asked = await service.take(request, MessageCountRequest)
        service.model(asked.model)
        chat, sampling = asked.chat(), {**service.sampling, **asked.sampling()}
        with service.counted(user):
            tokens = await service.promised(
                request, service.client.tokenize(chat, sampling, user=user)
            )
        return JSONResponse({"input_tokens": len(tokens)}, headers=asked.ignored_header)
