"""serve: runs the MQTT gateway, without a screen or beside one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from app.gateway.mqtt.gateway import MqttGateway
from app.gateway.mqtt.transport.embedded import BrokerError, EmbeddedBroker
from app.process.exits import ExitCode
from app.process.process import error_terminal
from app.process.serving import serving
from app.settings.settings import Settings, SettingsError
from app.system import systemd
from app.system.engine_crash import check_engine
from engine.api.client import EngineClient
from widgets.quantization import shortly

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
# A gateway whose view is older than this hangs.
HUNG_SECONDS = 5.0


def run(settings: Settings) -> int:
    """Serve until a signal comes, then drain; returns the exit code.

    Raises:
        AddressError: no broker is stated, or its password cannot be read.
        SettingsError: the embedded broker cannot be started.
        ModelLoadError: the model could not be loaded.
        StoreError: the store cannot be opened.
        RuntimeError: the gateway or the engine crashed.
        KeyboardInterrupt, SystemExit: another signal came while it drained, and ended it at once.
    """
    settings.mqtt.address()  # an error in it is told before a model is loaded
    request = settings.load_request()
    log.info("loading %s", request.model)
    with serving(request, error_terminal()) as client:
        if settings.pinned:
            client.pin("system", settings.pinned)
        with mqtt_gateway(settings, client) as gateway:
            assert gateway is not None
            try:
                systemd.notify("READY=1")
                _watch(gateway, client)
            except (KeyboardInterrupt, SystemExit):
                log.info("draining; once more ends it at once")
                return ExitCode.OK
            finally:
                systemd.notify("STOPPING=1")
    return ExitCode.FAILED


@contextmanager
def mqtt_gateway(settings: Settings, client: EngineClient) -> Iterator[MqttGateway | None]:
    """Run the gateway that the settings ask for, until the end of the context; None if they ask for
    none.

    At the end of the context the gateway drains. An exception, such as that of a signal, ends it at
    once, also while it drains.

    Raises:
        AddressError: the broker's password cannot be read.
        SettingsError: the embedded broker cannot be started.
        StoreError: the store cannot be opened.
    """
    if not settings.mqtt.is_on:
        yield None
        return
    address = settings.mqtt.address()
    with ExitStack() as stack:
        if settings.mqtt.embedded_broker:
            try:
                stack.enter_context(EmbeddedBroker(address.port, host=address.host))
            except BrokerError as error:
                raise SettingsError(f"embedded_broker: {error}") from None
        gateway = MqttGateway(
            client,
            settings.mqtt,
            address,
            settings.store_file,
            sampling=settings.sampling,
            system=settings.system,
        )
        pool, node = settings.mqtt.pool, settings.mqtt.node
        gateway.start()
        try:
            model = settings.load_request().model
            # Beside a screen, it is still being loaded.
            snapshot = client.snapshot()
            if snapshot is not None and (quantized := shortly(snapshot.model)):
                model += f" ({quantized})"
            log.info("serving %s on %s, pool %s, node %s", model, address, pool, node)
            if settings.mqtt.embedded_broker:
                log.info('try it: tui ask --mqtt %s --pool %s "Hello!"', address, pool)
            yield gateway
            gateway.stop()
        except BaseException:
            gateway.stop(0.0)
            raise


def _watch(gateway: MqttGateway, client: EngineClient) -> None:
    """Watch gateway and engine, and tell systemd's watchdog; returns when the gateway has given up.

    Raises:
        RuntimeError: the gateway or the engine crashed.
    """
    expected = systemd.watchdog_seconds()
    pause = LOOK_SECONDS if expected is None else min(LOOK_SECONDS, expected / 4)
    while not gateway.wait_ended(pause) and not gateway.failure:
        check_engine(client)
        if expected is not None and time.monotonic() - gateway.view().time < HUNG_SECONDS:
            systemd.notify("WATCHDOG=1")
    log.error("no longer serving: %s", gateway.failure)
    if gateway.wait_ended(0.0):
        raise RuntimeError(f"the MQTT gateway crashed: {gateway.failure}")
