"""Tokenize and Detokenize: /tokenize and /detokenize, in vLLM's form."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.http.body import until_gone
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.generation import send_whole
from app.gateway.http.protocol.tokens import DetokenizeRequest, TokenizeRequest


class Tokenize(Endpoint):
    """The token ids of a text or of a chat."""

    kind = TokenizeRequest

    async def answer(self, request: Request, send: Send) -> Response | None:
        service = self.service
        user, asked = await service.read_request(request, TokenizeRequest)
        service.model(asked.model)
        text, sampling = asked.text(), {**service.sampling, **asked.sampling()}
        adds = asked.add_special_tokens is not False
        with service.counted(user):
            tokens = await service.promised(
                request,
                service.client.tokenize(text, sampling, add_special_tokens=adds, user=user),
            )
            token_strs = None
            if asked.return_token_strs:
                token_strs = await service.promised(request, service.client.spell(tokens))
            payload: dict[str, object] = {
                "count": len(tokens),
                "max_model_len": service.max_model_len,
                "tokens": tokens,
                "token_strs": token_strs,
            }
            # 4 MB of text may be as many tokens.
            gone = asyncio.create_task(until_gone(request))
            try:
                return await send_whole(payload, asked.ignored_header, send, gone)
            finally:
                gone.cancel()


class Detokenize(Endpoint):
    """The text of token ids."""

    kind = DetokenizeRequest

    async def answer(self, request: Request, send: Send) -> Response:
        service = self.service
        user, asked = await service.read_request(request, DetokenizeRequest)
        service.model(asked.model)
        with service.counted(user):
            text = await service.promised(request, service.client.detokenize(asked.tokens))
        return JSONResponse({"prompt": text}, headers=asked.ignored_header)
