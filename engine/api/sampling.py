"""SamplingParams: how a request's tokens are chosen, and where its output ends."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from engine.api.errors import InvalidRequestError
from engine.api.structure import Structure
from engine.api.tools import MAX_TOOLS_BYTES, check_tools, json_bytes

MAX_STOPS = 16
# Of all: each reply tests each at each character, and holds back text as long as the longest.
MAX_STOP_BYTES = 1 << 14
# As JSON, as much as tools may have, because templates take documents in this way.
MAX_ARGUMENT_BYTES = MAX_TOOLS_BYTES
MAX_BIASES = 1024
MAX_STOP_TOKENS = 1024
MAX_LOGPROBS = 20
# The minimum and maximum of each number; `top_p` and `repetition_penalty` exclude the minimum.
RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "temperature": (0.0, 100.0),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (0.0, 100.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "top_k": (0, 2**31 - 1),
        "min_tokens": (0, 2**31 - 1),
        "seed": (0, 2**64 - 1),
        "max_tokens": (0, 2**31 - 1),
        "logprobs": (0, MAX_LOGPROBS),
        "prompt_logprobs": (0, MAX_LOGPROBS),
    }
)
# The value for -1, which llama.cpp, ollama and LM Studio write for an unset value, and vLLM and
# transformers for keeping all tokens.
_OF_MINUS_ONE: Mapping[str, int | None] = MappingProxyType(
    {"top_k": 0, "seed": None, "max_tokens": None}
)
_MOST_WHOLE = 2.0**63
# The parameters that decide which tokens may be drawn, and with what probability.
CHOOSING = frozenset(("temperature", "top_k", "top_p", "min_p"))
# Defaults of chats where the model recommends none. In SmolLM2's replies to ten questions, plain
# sampling drew 14 % of the tokens from below a probability of 0.25 %, and these none; 4 % of their
# runs of four tokens were repetitions, and 28 % of those of greedy decoding.
CHAT_SAMPLING: Mapping[str, object] = MappingProxyType(
    {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
)
# Names that `apply_chat_template` of transformers uses itself; all others reach the template.
RESERVED_ARGUMENTS = frozenset(
    (
        *("conversation", "messages", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
        "tokenizer_kwargs",
    )
)
_DECIMAL = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when the output ends.

    Attributes:
        temperature: 0 is greedy and exact; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches p (nucleus sampling).
        min_p: keep tokens at least this likely relative to the most likely one.
        repetition_penalty: multiplicative, for tokens of prompt and output (CTRL, section 4.1).
        presence_penalty: subtracted once for each token already in the output.
        frequency_penalty: subtracted for each occurrence in the output.
        logit_bias: (token id, bias) pairs. A bias is from -100 to 100 and is added to the model's
            logits before all else, in greedy sampling too; -100 bans a token in practice.
            `override` takes a map, whose keys may be strings.
        logprobs: how many of the likeliest tokens come with each output token, beside its own
            log-probability and rank (`engine.api.logprobs.TokenLogprobs`); None returns nothing.
        prompt_logprobs: the same for the tokens of the prompt, except the first. The prompt is then
            computed even if it is cached.
        seed: the only source of randomness, together with the output position; None draws a seed at
            submit.
        min_tokens: an end of sequence or a stop counts only after this many output tokens.
        max_tokens: most output tokens; None means as many as fit. 0 is allowed only with
            `prompt_logprobs`: the request ends with its prompt.
        stop: strings that end the output; they are not part of it. All together they have at most
            `MAX_STOP_BYTES`.
        stop_token_ids: token ids that end the output, at most `MAX_STOP_TOKENS`.
        ignore_eos: continue past the model's end-of-sequence tokens.
        chat_template_kwargs: arguments of the chat template by name, such as `enable_thinking`,
            with JSON values, at most `MAX_ARGUMENT_BYTES`. An override replaces all of them.
        tools: functions that the model may call, as in OpenAI's API
            (`engine.api.tools.check_tools`). The template puts them in the prompt.
        structure: the form that the reply must have, except its thinking. When the form is complete
            the output ends, whatever `min_tokens` and `ignore_eos` are. `override` takes a map of
            one kind to its source (`engine.api.structure.Structure.of`).

    Raises:
        InvalidRequestError: a value is outside its range; `param` names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict, hash=False)
    tools: tuple[Mapping[str, object], ...] = field(default=(), hash=False)
    structure: Structure | None = None

    def __post_init__(self) -> None:
        self._check_number("temperature")
        self._check_number("top_p", above=True)
        self._check_number("min_p")
        self._check_number("repetition_penalty", above=True)
        self._check_number("presence_penalty")
        self._check_number("frequency_penalty")
        self._check_integer("top_k")
        self._check_integer("min_tokens")
        if self.logprobs is not None:
            self._check_integer("logprobs")
        self._check_own()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens "
                f"({self.max_tokens})",
                "min_tokens",
            )
        self._check_stops()
        self._check_bias()
        self._check_arguments()
        check_tools(self.tools)
        if self.structure is not None and not isinstance(self.structure, Structure):
            raise InvalidRequestError(
                f"structure is {reprlib.repr(self.structure)}; it must be a Structure, or "
                "`override` be given the map that states one",
                "structure",
            )
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequestError(
                f"ignore_eos is {self.ignore_eos!r}; it must be true or false", "ignore_eos"
            )

    def override(self, changes: Mapping[str, object]) -> SamplingParams:
        """Replace some of these parameters, by the names that a request uses.

        Raises:
            InvalidRequestError: a name is unknown, or a value is outside its range.
        """
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise InvalidRequestError(
                    f"{name} is no sampling parameter; allowed are {', '.join(sorted(known))}", name
                )
        # JSON and TOML only have lists and maps, and JSON's keys are strings.
        clean = {k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()}
        clean |= {name: as_number(name, clean[name]) for name in _INTEGERS & clean.keys()}
        if isinstance(bias := clean.get("logit_bias"), Mapping):
            clean["logit_bias"] = tuple((_token_id(key), value) for key, value in bias.items())
        structure = changes.get("structure")
        if structure is not None and not isinstance(structure, Structure):
            clean["structure"] = Structure.of(structure)
        return replace(self, **clean)  # type: ignore[arg-type]  # __post_init__ checks the values

    def of_sibling(self, *, seed: int | None, prompt_logprobs: int | None) -> SamplingParams:
        """The parameters of another reply to the same request, which differ only in these two. The
        others are checked once: for 128 replies with 256 KiB of tools it took 0.2 s.

        Raises:
            InvalidRequestError: one of them is outside its range.
        """
        sibling = copy(self)
        object.__setattr__(sibling, "seed", seed)
        object.__setattr__(sibling, "prompt_logprobs", prompt_logprobs)
        sibling._check_own()
        return sibling

    @property
    def template_arguments(self) -> Mapping[str, object]:
        """All arguments of the chat template beside the messages, by name."""
        if not self.tools:
            return self.chat_template_kwargs
        return {**self.chat_template_kwargs, "tools": list(self.tools)}

    def _check_own(self) -> None:
        """Check the parameters in which replies to one request may differ, and their dependents."""
        if self.prompt_logprobs is not None:
            self._check_integer("prompt_logprobs")
        if self.seed is not None:
            self._check_integer("seed")
        if self.max_tokens is not None:
            self._check_integer("max_tokens", 1 if self.prompt_logprobs is None else 0)

    def _check_number(self, name: str, *, above: bool = False) -> None:
        value, (low, high) = getattr(self, name), RANGES[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # NaN fails the comparison, which does not raise for integers beyond the range of floats.
        if not number or not low <= value <= high or (above and value == low):
            bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise InvalidRequestError(f"{name} is {value!r}; it must be a number {bound}", name)

    def _check_integer(self, name: str, least: int | None = None) -> None:
        value, (low, high) = getattr(self, name), RANGES[name]
        low = low if least is None else least
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidRequestError(
                f"{name} is {value!r}; it must be an integer from {low} to {high}", name
            )

    def _check_stops(self) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise InvalidRequestError(
                f"stop is {reprlib.repr(self.stop)}; it must be a list of non-empty strings", "stop"
            )
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequestError(
                f"stop has {len(self.stop)} strings; at most {MAX_STOPS} are allowed", "stop"
            )
        size = sum(len(stop.encode(errors="surrogatepass")) for stop in self.stop)
        if size > MAX_STOP_BYTES:
            raise InvalidRequestError(
                f"stop has {size} bytes in all; at most {MAX_STOP_BYTES} are allowed", "stop"
            )
        ids = self.stop_token_ids
        if isinstance(ids, tuple) and len(ids) > MAX_STOP_TOKENS:
            raise InvalidRequestError(
                f"stop_token_ids has {len(ids)} entries; at most {MAX_STOP_TOKENS} are allowed",
                "stop_token_ids",
            )
        if not isinstance(ids, tuple) or not all(type(i) is int and i >= 0 for i in ids):
            raise InvalidRequestError(
                f"stop_token_ids is {reprlib.repr(ids)}; it must be a list of token ids",
                "stop_token_ids",
            )

    def _check_bias(self) -> None:
        pairs = self.logit_bias
        if not isinstance(pairs, tuple) or not all(type(p) is tuple and len(p) == 2 for p in pairs):
            raise InvalidRequestError(
                f"logit_bias is {reprlib.repr(pairs)}; it must be a map of token ids to numbers",
                "logit_bias",
            )
        if len(pairs) > MAX_BIASES:
            raise InvalidRequestError(
                f"logit_bias has {len(pairs)} entries; at most {MAX_BIASES} are allowed",
                "logit_bias",
            )
        seen: set[int] = set()
        for token_id, bias in pairs:
            if type(token_id) is not int or token_id < 0:
                raise InvalidRequestError(
                    f"logit_bias has the key {reprlib.repr(token_id)}; it must be a token id",
                    "logit_bias",
                )
            if token_id in seen:
                raise InvalidRequestError(
                    f"logit_bias names token id {token_id} twice; once is allowed", "logit_bias"
                )
            seen.add(token_id)
            # NaN fails the comparison.
            if type(bias) not in (int, float) or not -100 <= bias <= 100:
                raise InvalidRequestError(
                    f"logit_bias of token id {token_id} is {bias!r}; it must be a number from -100 "
                    "to 100",
                    "logit_bias",
                )

    def _check_arguments(self) -> None:
        name, arguments = "chat_template_kwargs", self.chat_template_kwargs
        if not isinstance(arguments, Mapping) or not all(
            isinstance(key, str) and key.isidentifier() for key in arguments
        ):
            raise InvalidRequestError(
                f"{name} is {reprlib.repr(arguments)}; it must be a map of names to values", name
            )
        if taken := RESERVED_ARGUMENTS.intersection(arguments):
            raise InvalidRequestError(
                f"{name} has {min(taken)!r}, which is no argument of a chat template", name
            )
        if "tools" in arguments:
            raise InvalidRequestError(f"{name} has 'tools', which is a field of its own", name)
        try:
            size = json_bytes(arguments)
        except (TypeError, ValueError, RecursionError):
            raise InvalidRequestError(f"{name} must have values as JSON has them", name) from None
        if size > MAX_ARGUMENT_BYTES:
            raise InvalidRequestError(
                f"{name} has {size} bytes as JSON; at most {MAX_ARGUMENT_BYTES} are allowed", name
            )


_INTEGERS = _OF_MINUS_ONE.keys() | {"min_tokens", "logprobs", "prompt_logprobs"}


def as_number(name: str, value: object) -> object:
    """Convert a request's number to an integer parameter: clients without integers write 5 as
    `5.0`, and -1 means none for `top_k`, `seed` and `max_tokens`.

    Args:
        name: name of the parameter.
        value: of any type; other values are returned as they are.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE:
        value = int(value)
    is_none = name in _OF_MINUS_ONE and type(value) is int and value == -1
    return _OF_MINUS_ONE[name] if is_none else value


def _token_id(key: object) -> object:
    return int(key) if isinstance(key, str) and _DECIMAL.fullmatch(key) else key
