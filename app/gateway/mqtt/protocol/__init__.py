"""The messages and topics of chat over MQTT, as docs/mqtt.md has them."""
