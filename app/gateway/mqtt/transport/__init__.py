"""Brokers: where they are, the connection to one, and one of our own to try things out with.

`Link` reconnects for ever, acknowledges on request, and says whether the broker has taken a
message. `Connection`, with `dialing`, `packets` and `pump`, is all that knows aiomqtt and paho.
Each connection has a new client, so that nothing is queued in a dead one. In the `Outbox` messages
that the broker has to confirm wait for its window, in a queue for each user. Users take turns, so
that a flood of refusals to one of them delays nobody else. `TwinWatch` notices another server under
our client identifier where the broker does not report it.
"""
