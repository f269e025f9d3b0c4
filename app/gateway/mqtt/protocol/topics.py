"""Topics: the topic of each message, and its owner."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

PREFIX = "llm/v1"
EVERY = "*"
MAX_LEVEL = 128
# The most levels of a ResponseTopic below the branch of its client's replies.
MAX_OWN_LEVELS = 8
LEVEL = f"1 to {MAX_LEVEL} printable characters without space, /, + and #"


def check_level(name: str, value: str) -> str:
    """Check that a value is valid as a topic level, and return it.

    Raises:
        ValueError: it is not; the message begins with the name.
    """
    if not is_level(value):
        raise ValueError(f"{name} is {reprlib.repr(value)}; it must be {LEVEL}")
    return value


def is_level(value: str) -> bool:
    """Whether a value is valid as a topic level."""
    fits = 0 < len(value) <= MAX_LEVEL and value.isprintable()
    return fits and not any(character in value for character in " /+#")


def user_of(reply_topic: str) -> str:
    """The user whose replies are sent to a topic; a caller must own the topic (`Caller.owns`)."""
    return reply_topic.split("/", 5)[4]


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, and the request's id. The broker's access list vouches for user and
    client.

    Attributes:
        request_id: the request's id; `*` in a cancel means all requests of the client.
        is_cancel: whether the topic carries a cancel, not a request.

    Raises:
        ValueError: a part is not valid as a topic level.
    """

    pool: str
    user: str
    client: str
    request_id: str
    is_cancel: bool = False

    def __post_init__(self) -> None:
        check_level("pool", self.pool)
        check_level("user", self.user)
        check_level("client", self.client)
        check_level("request_id", self.request_id)

    @classmethod
    def of(cls, key: str) -> Caller:
        """The caller with this `key`."""
        pool, user, client, request_id = key.split("/")
        return cls(pool, user, client, request_id)

    @property
    def key(self) -> str:
        """A unique name of this request. It is unambiguous, because no part has a slash."""
        return f"{self.pool}/{self.user}/{self.client}/{self.request_id}"

    @property
    def branch(self) -> str:
        """The common prefix of the client's reply topics."""
        return f"{PREFIX}/{self.pool}/rep/{self.user}/{self.client}/"

    def owns(self, topic: str) -> bool:
        """Whether replies may go to this topic: it must lie a few levels below the branch.

        Brokers let any text pass as a ResponseTopic. But a broker may end our connection when we
        publish to a topic that is too deep (Mosquitto: 200 levels), or that has a control character
        or a wildcard.
        """
        levels = topic.removeprefix(self.branch).split("/")
        is_below = topic.startswith(self.branch) and len(levels) <= MAX_OWN_LEVELS
        return is_below and all(map(is_level, levels))

    @property
    def request_topic(self) -> str:
        return self._topic("req")

    @property
    def reply_topic(self) -> str:
        return self._topic("rep")

    @property
    def cancel_topic(self) -> str:
        return self._topic("cancel")

    def _topic(self, kind: str) -> str:
        return f"{PREFIX}/{self.pool}/{kind}/{self.user}/{self.client}/{self.request_id}"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one node in a pool.

    Raises:
        ValueError: pool or node is not valid as a topic level.
    """

    pool: str
    node: str

    def __post_init__(self) -> None:
        check_level("pool", self.pool)
        check_level("node", self.node)

    @property
    def requests(self) -> str:
        """The filter of all requests to the pool."""
        return f"{PREFIX}/{self.pool}/req/+/+/+"

    @property
    def cancels(self) -> str:
        """The filter of all cancels in the pool."""
        return f"{PREFIX}/{self.pool}/cancel/+/+/+"

    @property
    def status(self) -> str:
        return self._own("status")

    @property
    def all_status(self) -> str:
        """The filter of the cards of all nodes of the pool."""
        return f"{PREFIX}/{self.pool}/node/+/status"

    def is_status(self, topic: str) -> bool:
        """Whether this is the card topic of a node of the pool."""
        return topic.startswith(f"{PREFIX}/{self.pool}/node/") and topic.endswith("/status")

    @staticmethod
    def node_of(topic: str) -> str:
        """The name of the node with this card topic."""
        return topic.split("/")[-2]

    @property
    def metrics(self) -> str:
        return self._own("metrics")

    @property
    def knobs(self) -> str:
        return self._own("knobs")

    @property
    def knobs_set(self) -> str:
        return self._own("knobs/set")

    @property
    def knobs_result(self) -> str:
        return self._own("knobs/result")

    def parse(self, topic: str) -> Caller | None:
        """The sender of a request or cancel on a topic of this pool; None for any other topic."""
        begin = f"{PREFIX}/{self.pool}/"
        if not topic.startswith(begin):
            return None
        try:
            kind, user, client, request_id = topic.removeprefix(begin).split("/")
            caller = Caller(self.pool, user, client, request_id, kind == "cancel")
        except ValueError:
            return None
        return caller if kind in ("req", "cancel") else None

    def _own(self, name: str) -> str:
        return f"{PREFIX}/{self.pool}/node/{self.node}/{name}"
