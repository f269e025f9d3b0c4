"""What chat over MQTT costs, measured on a real broker: `python -m benchmarks.mqtt`."""
