"""Chat over MQTT: requests in from a broker, replies out to it, in the same batch as the screen."""

# The name of this source in conversations, in the journal and in requests.
SOURCE = "mqtt"
