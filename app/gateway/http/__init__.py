"""Chat over HTTP, as OpenAI's and Anthropic's clients ask, in the same batch as the screen.

    client -> uvicorn -> Endpoint -> Service.take -> EngineClient.submit -> Exchange -> Form

Starlette routes, uvicorn speaks HTTP.

- An `Endpoint` is one address. A `Fault` or an error of the engine becomes the error object that
  clients know, as long as nothing was sent; an `AnthropicEndpoint` has the errors of Anthropic's
  clients. A `Generation` is an endpoint that generates: it decides the submissions and the `Form`
  of replies; the rest of the way is the same for all.
- An `Exchange` is a request with one submission for each reply; the others are forks of the first,
  so that they share its prompt. Only exchanges whose client has taken all output are read after a
  step: what a slow reader has not taken stays in its `RequestStream` as one piece.
- A stream's status is sent with its first text, so that a refusal of the engine has its own status,
  or after 2 s. While it waits, a comment every 10 s shows both sides that the other is there.
- Nothing is journalled: the client holds the connection and sees that there is no answer. A client
  that goes away ends its request (`until_gone`). Nobody waits for batches, so those are in the
  store (`app.gateway.http.batches`).
- `ResponseMemory` keeps the last responses of `/v1/responses`, by user and within bounds: messages,
  and the token ids from which the next one continues. It ends with the program.
- Tokenizing submits nothing. `EngineClient.tokenize` has a prompt encoded in the turn of its user,
  and it counts as one of their requests meanwhile (`Service.counted`).
- `Connections` accepts in place of asyncio's server: it closes idle connections where there are too
  many, and begins requests in turns of the keys, one per turn of the loop.
- Bounds that uvicorn lacks: the time of a head (`Connection`), the size and time of a body
  (`read_body`), and how long a client may leave sent data unacknowledged (`TCP_USER_TIMEOUT`).
"""
