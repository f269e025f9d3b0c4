"""Chat over MQTT: requests in from a broker, replies out to it, in the same batch as the screen.

    broker -> Link -> Intake -> journal -> ack -> EngineClient.submit -> Exchange -> deltas -> Link
                                                                           +-> journal -> Delivery

docs/mqtt.md has the messages, `protocol` their types, and `transport` the connection to the broker.
The gateway has a connection of its own to the store.

- `Intake` decides about each message. Requests that came together are journalled in one
  transaction, then acknowledged, then submitted. After a crash before the acknowledgement the
  broker sends them again; after a later crash they are found in the journal.
- `Exchange` and `Exchanges` send the output to the owner: the first text at once, then a delta
  every `delta_ms`, or more rarely while the broker does not keep up.
- An ending is journalled before it is sent. `Delivery` sends it until the broker has acknowledged
  it, after a restart too, or has refused it five times. The journal keeps the first ending of an
  attempt, so that no attempt has two. While the store cannot be written, endings wait. The node
  that serves the pool adopts the requests whose lease no process holds any more: it ends those that
  a dead process of the same store left open, and sends the unsent endings.
- The topic names the user, and the broker's access list guards that. `Quotas` limit each user; the
  engine decides the order of users (`order = fair`).
- `Node` and `KnobsTopic` publish this server and its knobs. Of several nodes in a pool, the one
  that has been connected longest answers, and the others stand by.
- A request is remembered for 24 hours after its ending: published again within that time, it is
  answered from the journal. `Retention` removes every hour, in small slices on a thread, older
  requests whose endings were sent, and conversations unchanged for `retention_days`; then it
  shrinks the file.
"""
