"""SamplingParams: how a request's tokens are chosen, and where its output ends."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from types import MappingProxyType

from engine.api.errors import InvalidRequestError
from engine.api.sampling_spec import COMMON, NumberRange, SamplingSpec, parameter, specs_of
from engine.api.structure import Structure
from engine.api.tools import MAX_TOOLS, MAX_TOOLS_BYTES, check_tools, json_bytes

MAX_STOPS = 16
# For all stop strings together: each reply tests each of them at each character, and holds back as
# much text as the longest one has.
MAX_STOP_BYTES = 1 << 14
# As JSON, as much as tools may have, because templates take documents in this way.
MAX_ARGUMENT_BYTES = MAX_TOOLS_BYTES
MAX_BIASES = 1024
MAX_STOP_TOKENS = 1024
MAX_LOGPROBS = 20
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
    """How the next token is chosen and when the output ends. The line that declares a parameter
    states its whole `SamplingSpec`; requests, settings and docs follow from it.

    Attributes:
        temperature: 0 is greedy and exact; otherwise logits are divided by it.
        repetition_penalty: multiplicative (CTRL, section 4.1).
        logit_bias: (token id, bias) pairs, added in greedy sampling too. `override` takes a map,
            whose keys may be strings.
        logprobs: how many of the likeliest tokens come with each output token, beside its own
            log-probability and rank (`engine.api.logprobs.TokenLogprobs`); None returns nothing.
        prompt_logprobs: the same for the tokens of the prompt, except the first. The prompt is then
            computed even if it is cached.
        seed: the only source of randomness, together with the output position; None draws a seed at
            submit.
        min_tokens: an end of sequence or a stop counts only after this many output tokens.
        max_tokens: 0 is allowed only with `prompt_logprobs`: the request ends with its prompt.
        chat_template_kwargs: such as `enable_thinking`. An override replaces all of them.
        tools: checked by `engine.api.tools.check_tools`. The template puts them in the prompt.
        structure: the form that the reply must have, except its thinking. When the form is complete
            the output ends, whatever `min_tokens` and `ignore_eos` are. `override` takes a map of
            one kind to its source (`engine.api.structure.Structure.of`).

    Raises:
        InvalidRequestError: a value is outside its range; `param` names the field.
    """

    temperature: float = parameter(
        1.0,
        "0 always takes the most likely token; higher values are more varied",
        NumberRange(0.0, 100.0),
        interfaces=(*COMMON, "responses", "messages"),
    )
    top_k: int = parameter(
        0,
        "only the k most likely tokens; 0 is all",
        NumberRange(0, 2**31 - 1, of_minus_one=True),
        interfaces=(*COMMON, "messages"),
    )
    top_p: float = parameter(
        1.0,
        "the fewest tokens that together have this probability; 1 is all",
        NumberRange(0.0, 1.0, above=True),
        interfaces=(*COMMON, "responses", "messages"),
    )
    min_p: float = parameter(
        0.0,
        "tokens at least this likely relative to the most likely one; 0 is all",
        NumberRange(0.0, 1.0),
    )
    repetition_penalty: float = parameter(
        1.0,
        "above 1, makes tokens that are already in prompt or reply less likely",
        NumberRange(0.0, 100.0, above=True),
    )
    presence_penalty: float = parameter(
        0.0,
        "subtracted once from the logits of tokens that are already in the reply",
        NumberRange(-2.0, 2.0),
    )
    frequency_penalty: float = parameter(
        0.0,
        "subtracted from a token's logit for each time that the reply has it",
        NumberRange(-2.0, 2.0),
    )
    logit_bias: tuple[tuple[int, float], ...] = parameter(
        (),
        "added to logits of token ids before all else; -100 bans, 100 forces",
        "a map of token ids to numbers from -100 to 100",
    )
    logprobs: int | None = parameter(
        None,
        "log-probability and rank of each token, and of the N likeliest",
        NumberRange(0, MAX_LOGPROBS),
        interfaces=("text",),
        names={"chat": "top_logprobs", "mqtt": "top_logprobs"},
    )
    prompt_logprobs: int | None = parameter(
        None,
        "the same for each token of the prompt, all of which are then computed",
        NumberRange(0, MAX_LOGPROBS),
    )
    seed: int | None = parameter(
        None,
        "start value of the random numbers; if not set, each reply draws its own",
        NumberRange(0, 2**64 - 1, of_minus_one=True),
    )
    min_tokens: int = parameter(
        0, "the reply does not end before it has this many tokens", NumberRange(0, 2**31 - 1)
    )
    max_tokens: int | None = parameter(
        None,
        "most tokens of a reply; if not set, as many as fit",
        NumberRange(1, 2**31 - 1, of_minus_one=True),
        interfaces=(*COMMON, "messages"),
        names={"responses": "max_output_tokens"},
    )
    stop: tuple[str, ...] = parameter(
        (),
        "a text or a list of texts: each ends the reply and is not part of it",
        f"text or a list of at most {MAX_STOPS} texts, none of them empty, "
        f"{MAX_STOP_BYTES >> 10} KiB in all",
        names={"messages": "stop_sequences"},
    )
    stop_token_ids: tuple[int, ...] = parameter(
        (),
        "a list of token ids: each ends the reply",
        f"a list of at most {MAX_STOP_TOKENS} token ids",
    )
    ignore_eos: bool = parameter(
        False, "continue after the model's end-of-sequence token", "true or false"
    )
    chat_template_kwargs: Mapping[str, object] = parameter(
        {},
        "arguments of the chat template, which differ from model to model",
        f"a map of names to values, {MAX_ARGUMENT_BYTES >> 10} KiB as JSON",
        interfaces=("chat", "mqtt"),
        hashed=False,
    )
    tools: tuple[Mapping[str, object], ...] = parameter(
        (),
        "functions that the model may call, as OpenAI's interface has them",
        f"a list of at most {MAX_TOOLS} functions",
        interfaces=("chat", "mqtt"),
        hashed=False,
    )
    structure: Structure | None = parameter(  # noqa: RUF009  # it makes a dataclass field
        None,
        "the form of the reply: a JSON Schema, an expression, choices, a grammar",
        "a map of one kind to its source",
        interfaces=("mqtt",),
    )

    def __post_init__(self) -> None:
        for name in _SHARED:
            self._check_number(name)
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
                "`override` takes the map that states one",
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
        for name in changes:
            if name not in SAMPLING_SPECS:
                allowed = ", ".join(sorted(SAMPLING_SPECS))
                text = f"{name} is not a sampling parameter; allowed are {allowed}"
                raise InvalidRequestError(text, name)
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
        for name in _OWN:
            self._check_number(name)

    def _check_number(self, name: str) -> None:
        value, allowed = getattr(self, name), _RANGES[name]
        if name == "max_tokens" and self.prompt_logprobs is not None:
            allowed = replace(allowed, low=0)
        is_unset = value is None and SAMPLING_SPECS[name].default is None
        if not is_unset and value not in allowed:
            raise InvalidRequestError(f"{name} is {value!r}; it must be {allowed}", name)

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
                f"{name} has {min(taken)!r}, which cannot be an argument of a chat template", name
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


SAMPLING_SPECS: Mapping[str, SamplingSpec] = specs_of(SamplingParams)
_RANGES = {
    name: spec.allowed
    for name, spec in SAMPLING_SPECS.items()
    if isinstance(spec.allowed, NumberRange)
}
_INTEGERS = frozenset(name for name, allowed in _RANGES.items() if allowed.is_integer)
# Replies to one request may differ in the first two, and whether 0 is allowed of the last one
# depends on the first.
_OWN = ("prompt_logprobs", "seed", "max_tokens")
_SHARED = tuple(name for name in _RANGES if name not in _OWN)


def as_number(name: str, value: object) -> object:
    """Convert a request's number to an integer parameter: clients without integers write 5 as
    `5.0`. llama.cpp, ollama and LM Studio write -1 for an unset value, and vLLM and transformers
    write it to keep all tokens, which is also the default.

    Args:
        name: name of the parameter; empty for another number.
        value: of any type; other values are returned as they are.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE:
        value = int(value)
    is_default = type(value) is int and value == -1 and name in _RANGES
    return SAMPLING_SPECS[name].default if is_default and _RANGES[name].of_minus_one else value


def _token_id(key: object) -> object:
    return int(key) if isinstance(key, str) and _DECIMAL.fullmatch(key) else key
