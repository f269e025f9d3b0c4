"""Brokers: their addresses, the connection to one, and an embedded one for trials.

`Link` reconnects for ever, acknowledges on request, and says whether the broker has taken a
message. Only `Connection`, `dialing`, `packets` and `pump` use aiomqtt and paho. Each connection
makes a new paho client, so that nothing is queued in a dead one. In the `Outbox`, messages that the
broker has to confirm wait until its window has space, in a queue for each user. Users take turns,
so that a flood of refusals to one of them delays nobody else. `TwinWatch` notices another server
under our client identifier where the broker does not report it.
"""
