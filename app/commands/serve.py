"""serve: runs the gateways, without a screen or beside one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from app.gateway.gateways import Gateways
from app.gateway.http.settings import HttpSettings
from app.gateway.loop_thread import ThreadedGateway
from app.gateway.mqtt.gateway import MqttGateway
from app.gateway.mqtt.transport.embedded import BrokerError, EmbeddedBroker
from app.process.exits import ExitCode
from app.process.process import error_terminal
from app.process.serving import loading, wait_until_loaded
from app.settings.settings import Settings, SettingsError
from app.system import systemd
from app.system.engine_crash import check_engine
from engine.api.client import EngineClient
from widgets.off_path import in_full
from widgets.quantization import shortly

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
# A gateway whose view is older than this is considered hung.
HUNG_SECONDS = 5.0


def run(settings: Settings) -> int:
    """Serve until a signal comes, then drain; returns the exit code.

    Raises:
        AddressError: no broker is stated, or its password cannot be read.
        HttpError: the address cannot be listened on, or a key or a certificate cannot be read.
        SettingsError: nothing is to be served, or the embedded broker cannot be started.
        ModelLoadError: the model could not be loaded.
        StoreError: the store cannot be opened.
        RuntimeError: a gateway or the engine crashed.
        KeyboardInterrupt, SystemExit: another signal came while it drained, and ended it at once.
    """
    # Errors are reported before a model is loaded, also that a port is in use.
    if settings.mqtt.is_on:
        settings.mqtt.address()
    if not (settings.mqtt.is_on or settings.http.is_on):
        raise SettingsError(
            "nothing to serve: state --http [HOST:]PORT or --mqtt URL, TUI_HTTP or TUI_MQTT,"
            " or listen under [http] or url under [mqtt]"
        )
    request = settings.load_request()
    log.info("loading %s", request.model)

    def load() -> None:
        wait_until_loaded(client, error_terminal())
        if settings.pinned:
            client.pin("system", settings.pinned)

    with loading(request) as client, gateways(settings, client, load) as running:
        try:
            systemd.notify("READY=1")
            _watch(running, client)
        except (KeyboardInterrupt, SystemExit):
            log.info("draining; a second signal ends it at once")
            return ExitCode.OK
        finally:
            systemd.notify("STOPPING=1")
    return ExitCode.FAILED


@contextmanager
def gateways(
    settings: Settings, client: EngineClient, load: Callable[[], None] = lambda: None
) -> Iterator[Gateways]:
    """Run the gateways that the settings enable, until the end of the context.

    When the context ends, both drain at once. An exception, such as that of a signal, ends them
    immediately, also while they drain.

    Args:
        load: returns when the model is loaded. Meanwhile HTTP is served, so that `/health` reports
            the progress; an MQTT node would take requests from its pool.

    Raises:
        AddressError: the broker's password cannot be read.
        HttpError: the address cannot be listened on, or a key or a certificate cannot be read.
        SettingsError: the embedded broker cannot be started.
        StoreError: the store cannot be opened.
    """
    with ExitStack() as stack:
        http = mqtt = None
        running: list[ThreadedGateway] = []
        if settings.mqtt.is_on and settings.mqtt.embedded_broker:
            _start_broker(settings, stack)
        try:
            if settings.http.is_on:
                from app.gateway.http.gateway import HttpGateway

                http = HttpGateway(
                    client, settings.http, settings.store_file, sampling=settings.sampling
                )
                stack.callback(http.close)
                _start(http, running)
            load()
            if settings.mqtt.is_on:
                mqtt = _mqtt_gateway(settings, client)
                _start(mqtt, running)
            _log_addresses(settings, client, Gateways(mqtt=mqtt, http=http))
            yield Gateways(mqtt=mqtt, http=http)
            for one in running:
                one.request_stop()
            for one in running:
                one.stop()
        except BaseException:
            for one in running:
                one.request_stop(0.0)
            for one in running:
                one.stop(0.0)
            raise


def _start(gateway: ThreadedGateway, running: list[ThreadedGateway]) -> None:
    gateway.start()
    running.append(gateway)


def _start_broker(settings: Settings, stack: ExitStack) -> None:
    address = settings.mqtt.address()
    try:
        stack.enter_context(EmbeddedBroker(address.port, host=address.host))
    except BrokerError as error:
        raise SettingsError(f"embedded_broker: {error}") from None


def _mqtt_gateway(settings: Settings, client: EngineClient) -> MqttGateway:
    return MqttGateway(
        client,
        settings.mqtt,
        settings.mqtt.address(),
        settings.store_file,
        sampling=settings.sampling,
        system=settings.system,
    )


def _log_addresses(settings: Settings, client: EngineClient, running: Gateways) -> None:
    """Log the model and the addresses, and how to try them."""
    model = settings.load_request().model
    # Beside a screen, the model is still loading.
    snapshot = client.snapshot()
    if snapshot is not None and (quantized := shortly(snapshot.model)):
        model += f" ({quantized})"
    if snapshot is not None and (off := in_full(snapshot.model)):
        log.warning("%s is not wholly on the fast path: %s", snapshot.model.name, off)
    if running.http is not None:
        log.info("serving %s on %s", model, running.http.url)
        _warn_of(settings.http, running.http.url)
    if running.mqtt is not None:
        address, pool = settings.mqtt.address(), settings.mqtt.pool
        log.info("serving %s on %s, pool %s, node %s", model, address, pool, settings.mqtt.node)
        if settings.mqtt.embedded_broker:
            log.info('try it: tui ask --mqtt %s --pool %s "Hello!"', address, pool)


def _warn_of(settings: HttpSettings, url: str) -> None:
    if not settings.has_keys and not settings.address.is_loopback:
        log.warning(
            "anybody who reaches %s may send requests; --api-key or [http.keys] requires a key",
            url,
        )


def _watch(running: Gateways, client: EngineClient) -> None:
    """Watch gateways and engine, and notify systemd's watchdog; returns when one has ended.

    Raises:
        RuntimeError: a gateway or the engine crashed.
    """
    watched = {"MQTT": running.mqtt, "HTTP": running.http}
    there = {name: one for name, one in watched.items() if one is not None}
    expected = systemd.watchdog_seconds()
    pause = LOOK_SECONDS if expected is None else min(LOOK_SECONDS, expected / 4)
    first, *others = there.values()
    while not first.wait_ended(pause):
        if first.failure or any(one.failure or one.wait_ended(0.0) for one in others):
            break
        check_engine(client)
        is_alive = all(time.monotonic() - one.view().time < HUNG_SECONDS for one in there.values())
        if expected is not None and is_alive:
            systemd.notify("WATCHDOG=1")
    for name, one in there.items():
        if one.failure:
            log.error("no longer serving over %s: %s", name, one.failure)
        if one.wait_ended(0.0):
            raise RuntimeError(f"the {name} gateway crashed: {one.failure}")
