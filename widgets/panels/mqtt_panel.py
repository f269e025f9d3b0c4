"""MqttPanel: the broker, the traffic over it, and its bad messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from widgets.panels.gateway_panel import GatewayPanel
from widgets.panels.mqtt_readings import MqttReadings
from widgets.panels.scroll_panel import list_keys
from widgets.words import glosses


class MqttPanel(GatewayPanel[MqttReadings]):
    """The state is that of the connection to the broker."""

    NAME = "MQTT"
    OFF = (
        "MQTT is off. `tui --mqtt mqtt://HOST` serves chats over a broker,"
        " `tui --embedded-broker` brings one along to try it."
    )
    FIRST_TOKEN = "publish to first token"
    EXPLAINED = "untold"
    GLOSS: ClassVar[Mapping[str, str]] = glosses("live", "no token", "untold")

    BINDINGS: ClassVar[list[BindingType]] = [
        *list_keys("mqtt"),
        Binding(
            "r", "reconnect", "Reconnect", tooltip="Connect to the broker now", id="mqtt.reconnect"
        ),
    ]

    class ReconnectWanted(Message):
        """The user wants a new connection."""

    def action_reconnect(self) -> None:
        self.post_message(self.ReconnectWanted())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "reconnect" or self.readings is not None

    def title(self) -> str:
        readings = self.readings
        return f"{self.NAME} · {readings.pool}/{readings.node}" if readings else self.NAME

    def notes(self, readings: MqttReadings) -> Sequence[str]:
        return [f"MQTT {readings.protocol}"] if readings.protocol else []

    def own_figure(self, readings: MqttReadings) -> tuple[str, int, bool]:
        return "untold", readings.untold, readings.untold > 0
