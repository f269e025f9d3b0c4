"""Front ends that are no screen: standard input and output, HTTP and MQTT, and what they share."""
