"""A gateway of one's own: each connection to a Unix socket is a chat, each line of it a turn."""

from __future__ import annotations

import os
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer

from engine.api.client import ChatMessage, EngineClient, Submission, new_request_id
from engine.api.errors import ErrorInfo, InvalidRequestError
from engine.api.origin import Origin
from engine.api.stream import Context, RequestStream

MAX_LINE_BYTES = 1 << 20


class SocketGateway(ThreadingMixIn, UnixStreamServer):
    """Serves on a socket file, from `serve_forever` to `shutdown`; a context that removes the file.

    Who may open the file may chat, so it belongs in a folder of its users.
    """

    daemon_threads = True  # a chat that waits for its next line must not hold up the end

    def __init__(self, client: EngineClient, path: str) -> None:
        super().__init__(path, _Chat)
        self.client = client

    def server_close(self) -> None:
        super().server_close()
        os.unlink(str(self.server_address))


class _Chat(StreamRequestHandler):
    """One connection. A turn that is refused is told of, and left out of the chat."""

    server: SocketGateway

    def handle(self) -> None:
        self._messages: tuple[ChatMessage, ...] = ()
        self._context: Context | None = None
        self._origin = Origin(source="socket", conversation=new_request_id())
        try:
            while line := self.rfile.readline(MAX_LINE_BYTES):
                error = self._answer(line)
                self._write("\n" if error is None else f"error: {error.message}\n")
                if not line.endswith(b"\n"):
                    return  # the end, or the beginning of a line that is too long
        except ConnectionError:
            pass  # nobody is there to be told

    def _answer(self, line: bytes) -> ErrorInfo | None:
        """Say a line to the model and write the reply as it comes; why there is none, if not."""
        if len(line) == MAX_LINE_BYTES:
            message = f"the line has {MAX_LINE_BYTES:,} bytes or more; it must have fewer"
            return InvalidRequestError(message, "prompt").info()
        try:
            said = ChatMessage("user", line.decode().rstrip("\r\n"))
        except UnicodeDecodeError as error:
            message = f"byte {error.start + 1} of the line is not UTF-8; the line must be UTF-8"
            return InvalidRequestError(message, "prompt").info()
        chat = (*self._messages, said)
        submission = Submission(messages=chat, context=self._context, origin=self._origin)
        stream = self.server.client.submit(submission)
        try:
            return self._stream(stream, chat)
        except ConnectionError:
            self.server.client.abort(stream.request_id)
            raise

    def _stream(self, stream: RequestStream, chat: tuple[ChatMessage, ...]) -> ErrorInfo | None:
        reply = ""
        for delta in stream:
            reply += delta.text
            self._write(delta.text)
            if delta.finish is not None and delta.finish.error is not None:
                return delta.finish.error
            if delta.finish is not None:
                self._messages = (*chat, ChatMessage("assistant", reply))
                self._context = delta.finish.context
        return None

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
