"""Front ends without a screen: standard input and output, HTTP and MQTT, and their common parts.

HTTP and MQTT run in a thread each, with an event loop of its own (`ThreadedGateway`), so that
neither a step nor the screen waits for a client, a broker or a disk. The engine wakes a loop at
most once a step. They share faults, admission, quotas and tally. `GatewayView` and `Transcript` are
the screen's view of them: plain data, replaced as a whole, by reference.
"""
