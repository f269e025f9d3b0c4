"""Front ends that are no screen: standard input and output, and MQTT."""
