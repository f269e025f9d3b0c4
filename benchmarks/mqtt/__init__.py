"""The cost of chat over MQTT, measured on a real broker: `python -m benchmarks.mqtt`."""
