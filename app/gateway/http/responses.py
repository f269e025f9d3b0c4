"""Responses and OneResponse: /v1/responses, and /v1/responses/{id}, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.chat_completions import title_of
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.generation import Form, Generation, event
from app.gateway.http.protocol.responses import ResponsesRequest
from app.gateway.http.replies import Reply, created, went_well
from app.gateway.http.response_memory import RememberedResponse, ResponseMemory
from app.gateway.http.service import Service
from app.gateway.sources import HTTP
from engine.api.client import ChatMessage, Submission, new_request_id
from engine.api.lifecycle import FinishReason
from engine.api.origin import Origin
from engine.api.stream import Delta, Finish, Usage
from engine.api.tools import ToolCall

_Status = Literal["in_progress", "completed", "incomplete"]


@dataclass(slots=True)
class _Item:
    """A part of the output: thinking, text, or a call.

    Attributes:
        texts: pieces of its text; for a call, of its arguments.
        call: the call; None for thinking and text.
    """

    kind: Literal["reasoning", "message", "function_call"]
    id: str
    texts: list[str] = field(default_factory=list)
    call: ToolCall | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def part(self) -> dict[str, object]:
        """Its text, as a part of its content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def payload(self, status: _Status) -> dict[str, object]:
        item: dict[str, object] = {"id": self.id, "type": self.kind, "status": status}
        if self.call is not None:
            call = {"call_id": self.call.id, "name": self.call.name, "arguments": self.text}
            return item | call
        content = [self.part()] if self.texts else []
        if self.kind == "reasoning":
            return item | {"summary": [], "content": content}
        return item | {"role": "assistant", "content": content}


class ResponseForm(Form):
    """The events of a stream, or one answer. Both end with the response as it is remembered."""

    def __init__(
        self, asked: ResponsesRequest, model: str, submission: Submission, memory: ResponseMemory
    ) -> None:
        self._asked = asked
        self._model = model
        self._submission = submission
        self._memory = memory
        self._created = created()
        may_call = bool(submission.sampling.get("tools"))
        self._reply = Reply(may_call, asked.forced_calls(), asked.calls_one)
        self._items: list[_Item] = []
        self._is_open = False  # whether the last item may still grow
        self._ended: dict[str, object] = {}  # the response, once it has ended
        self._events: list[bytes] = []
        self._number = 0

    @property
    def _id(self) -> str:
        return f"resp_{self._submission.request_id}"

    def opening_events(self, num_prompt_tokens: int) -> Iterator[bytes]:
        response = self._response("in_progress")
        for kind in ("response.created", "response.in_progress"):
            self._add_event(kind, response=response)
        yield from self._drain_events()

    def add_delta(self, choice: int, delta: Delta) -> None:
        self._reply.add_delta(delta)
        if delta.thinking:
            self._grow("reasoning", delta.thinking)
        if self._reply.news:
            self._grow("message", self._reply.news)
        if delta.finish is not None and went_well(delta.finish):
            self._finish(delta.finish)

    def delta_events(self, choice: int, delta: Delta) -> Iterator[bytes]:
        yield from self._drain_events()

    def closing_events(self) -> Iterator[bytes]:
        self._add_event(f"response.{self._ended['status']}", response=self._ended)
        yield from self._drain_events()

    def failed(self, fault: Fault) -> Iterator[bytes]:
        error = {"code": "server_error", "message": fault.message}
        self._add_event("response.failed", response=self._response("failed") | {"error": error})
        yield from self._drain_events()

    def whole(self) -> dict[str, object]:
        return self._ended

    def _finish(self, finish: Finish) -> None:
        is_cut = finish.reason is FinishReason.LENGTH
        status: _Status = "incomplete" if is_cut else "completed"
        self._close(status)
        calls = self._calls()
        for call in calls:
            self._start_item("function_call", call)
            self._extend(call.arguments)
            self._close()
        self._ended = self._response(status, finish.usage)
        if self._asked.is_stored:
            self._remember(finish, calls)

    def _calls(self) -> tuple[ToolCall, ...]:
        """The calls to send, each with an id."""
        use, name = self._reply.use, self._submission.request_id
        return tuple(
            replace(call, id=call.id or f"call_{name}_{number}")
            for number, call in enumerate(() if use is None else use.calls)
        )

    def _remember(self, finish: Finish, calls: tuple[ToolCall, ...]) -> None:
        asked, reply = self._asked, self._reply
        said = ChatMessage("assistant", reply.text, reply.thinking, tool_calls=calls)
        messages = self._submission.messages[bool(asked.instructions) :]
        # These ids are those of all calls in the model's own format, as it wrote them.
        written = () if finish.tool_use is None else finish.tool_use.calls
        response = RememberedResponse(
            payload=self._ended,
            instructions=asked.instructions or "",
            messages=(*messages, said),
            context=finish.context if len(calls) == len(written) else None,
        )
        self._memory.store(self._submission.origin.user, self._id, response)

    def _grow(self, kind: Literal["reasoning", "message"], text: str) -> None:
        """Append to the last item, or begin one of another kind."""
        if not self._is_open or self._items[-1].kind != kind:
            self._close()
            self._start_item(kind)
        self._extend(text)

    def _start_item(
        self,
        kind: Literal["reasoning", "message", "function_call"],
        call: ToolCall | None = None,
    ) -> None:
        short = {"reasoning": "rs", "message": "msg", "function_call": "fc"}[kind]
        name = f"{short}_{self._submission.request_id}_{len(self._items)}"
        self._items.append(_Item(kind, name, call=call))
        self._is_open = True
        item = self._items[-1]
        self._add_event("response.output_item.added", **self._at, item=item.payload("in_progress"))
        if call is None:
            place = self._at | {"item_id": name, "content_index": 0}
            self._add_event("response.content_part.added", **place, part=item.part())

    def _extend(self, text: str) -> None:
        item = self._items[-1]
        item.texts.append(text)
        self._add_event(f"{_TEXT[item.kind]}.delta", **self._place(item), delta=text)

    def _close(self, status: _Status = "completed") -> None:
        """Close the last item, if it is open."""
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1]
        place = self._place(item)
        if item.call is not None:
            self._add_event(f"{_TEXT[item.kind]}.done", **place, arguments=item.text)
        else:
            self._add_event(f"{_TEXT[item.kind]}.done", **place, text=item.text)
            place.pop("logprobs", None)
            self._add_event("response.content_part.done", **place, part=item.part())
        self._add_event("response.output_item.done", **self._at, item=item.payload(status))

    @property
    def _at(self) -> dict[str, object]:
        return {"output_index": len(self._items) - 1}

    def _place(self, item: _Item) -> dict[str, object]:
        place = self._at | {"item_id": item.id}
        if item.kind != "function_call":
            place["content_index"] = 0
        if item.kind == "message":
            place["logprobs"] = []
        return place

    def _add_event(self, kind: str, **fields: object) -> None:
        if self._asked.stream:
            payload = {"type": kind, "sequence_number": self._number, **fields}
            self._events.append(event(payload, kind))
            self._number += 1

    def _drain_events(self) -> list[bytes]:
        events, self._events = self._events, []
        return events

    def _response(self, status: str, usage: Usage | None = None) -> dict[str, object]:
        """The response so far."""
        asked = self._asked
        items = self._items[:-1] if self._is_open else self._items
        output = [one.payload("completed") for one in items]
        if output and status == "incomplete":
            output[-1]["status"] = "incomplete"
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        effort = None if asked.reasoning is None else asked.reasoning.effort
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": not asked.calls_one,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "store": asked.is_stored,
            "temperature": asked.temperature,
            "text": {"format": _format(asked)},
            "tool_choice": _choice(asked),
            "tools": [tool.model_dump() for tool in asked.tools or ()],
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
        }


_TEXT = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


def _format(asked: ResponsesRequest) -> object:
    payload = None if asked.text is None else asked.text.format
    return (
        {"type": "text"}
        if payload is None
        else payload.model_dump(by_alias=True, exclude_none=True)
    )


def _choice(asked: ResponsesRequest) -> object:
    choice = asked.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.model_dump()


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class Responses(Generation[ResponsesRequest]):
    """The response to a conversation, or to the continuation of a remembered one."""

    kind = ResponsesRequest
    params: ClassVar[Mapping[str, str]] = {"messages": "input"}

    def __init__(self, service: Service, memory: ResponseMemory) -> None:
        super().__init__(service)
        self._memory = memory

    def submissions(self, user: str, asked: ResponsesRequest) -> Sequence[Submission]:
        messages, context = asked.messages(), None
        if (name := asked.previous_response_id) is not None:
            before = self._memory.get(user, name)
            if before is None:
                text = f"previous_response_id is {name!r}; it must be the id of one of your last"
                text += " responses that were stored"
                reason = "previous response not found"
                raise Fault(404, text, "previous_response_id", reason=reason)
            messages = [*before.messages, *messages]
            if before.instructions == (asked.instructions or ""):
                context = before.context
        if asked.instructions:
            messages.insert(0, ChatMessage("system", asked.instructions))
        request_id = new_request_id()
        origin = Origin(
            user=user,
            conversation=f"{HTTP}/{request_id}",
            source=HTTP,
            title=title_of(messages),
        )
        one = Submission(
            messages=tuple(messages),
            context=context,
            sampling={**self.service.sampling, **asked.sampling()},
            request_id=request_id,
            origin=origin,
            priority=self.service.quotas.priority(user, 0),
            cache_salt=self.service.salt(user, asked.cache_salt),
        )
        return (one,)

    def form(
        self, asked: ResponsesRequest, model: str, submissions: Sequence[Submission]
    ) -> ResponseForm:
        return ResponseForm(asked, model, submissions[0], self._memory)

    def streams(self, asked: ResponsesRequest) -> bool:
        return bool(asked.stream)

    def asked_model(self, asked: ResponsesRequest) -> str | None:
        return asked.model


class OneResponse(Endpoint):
    """GET returns a response of the caller, DELETE forgets it."""

    def __init__(self, service: Service, memory: ResponseMemory) -> None:
        super().__init__(service)
        self._memory = memory

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        name = request.path_params["name"]
        response = self._memory.get(user, name)
        if response is None:
            text = f"{name!r} is not one of your last stored responses"
            raise Fault(404, text, reason="response not found")
        if request.method != "DELETE":
            return JSONResponse(response.payload)
        self._memory.forget(user, name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})
