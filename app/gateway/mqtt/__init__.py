"""Chat over MQTT: requests in from a broker, replies out to it, in the same batch as the screen."""
