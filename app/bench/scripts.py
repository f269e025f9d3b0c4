"""Scripts: a benchmark's requests, drawn from distributions or read from a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from app.bench.dataset import Ask
from app.bench.lengths import Fixed, Lengths
from app.bench.traffic import Script, Turn
from engine.api.origin import Origin
from engine.api.sampling import SamplingParams
from engine.driving.traffic import Task

_POOL = 1 << 16
_MARKED = 4


class PromptMaker:
    """Makes prompts for a benchmark.

    A prompt is a mark, followed by a slice of one pool of random ids from a random offset. The mark
    is the prompt's number, written in the base of the vocabulary size. It makes every prompt
    distinct, so that the prefix cache finds nothing by chance. The slice costs 8 bytes a token,
    because it shares the pool's integers, and hardly any time: drawing each id would take 100 times
    as long.

    Args:
        vocab_size: ids are drawn from 0 up to, but not including, this.
        rng: draws the pool, and the place of each slice.
    """

    def __init__(self, vocab_size: int, rng: np.random.Generator) -> None:
        self._vocab_size = vocab_size
        self._rng = rng
        self._pool: list[int] = rng.integers(0, vocab_size, _POOL).tolist()
        self._made = 0

    def make(self, length: int) -> list[int]:
        """Make a prompt of `length` ids that is no prefix of another prompt of this maker."""
        number, self._made = self._made, self._made + 1
        ids = []
        for _ in range(_MARKED):
            number, digit = divmod(number, self._vocab_size)
            ids.append(digit)
        start = int(self._rng.integers(_POOL))
        while len(ids) < length:
            ids += self._pool[start : start + length - len(ids)]
            start = 0
        return ids[:length]


def arrivals(rate: float, burstiness: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield arrival times in seconds, without end.

    Gaps are gamma-distributed with mean `1 / rate` and shape `burstiness`, as `vllm bench serve`
    defines it. Unlike there, the sum of the gaps is not rescaled.

    Args:
        rate: requests a second; if infinite, all come at once.
        burstiness: 1 is a Poisson process. Below 1 requests come in bursts, above 1 they come more
            evenly; if infinite, one comes every `1 / rate` seconds.
    """
    now = 0.0
    while True:
        if math.isinf(rate):
            gap = 0.0
        elif math.isinf(burstiness):
            gap = 1 / rate
        else:
            gap = rng.gamma(burstiness, 1 / (rate * burstiness))
        now += gap
        yield now


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """A synthetic workload.

    Attributes:
        num_prompts: the number of requests, or of conversations if `turns` is above 1.
        input_len: tokens of a prompt after its prefix, and tokens that the user adds in each later
            turn.
        output_len: tokens of an output. Requests announce `output_len.most`.
        request_rate, burstiness: arrivals a second, and their burstiness; see
            `app.bench.scripts.arrivals`.
        prefix_len: length of the prefix that the prompts of one group share.
        num_prefixes: the number of such groups; prompts belong to them in turn.
        turns: requests of a conversation. Each continues from all tokens of those before it.
        think: seconds from the end of a turn to the next one.
    """

    num_prompts: int
    input_len: Lengths = Fixed(1024)  # noqa: RUF009  # frozen
    output_len: Lengths = Fixed(128)  # noqa: RUF009
    request_rate: float = math.inf
    burstiness: float = 1.0
    prefix_len: int = 0
    num_prefixes: int = 1
    turns: int = 1
    think: float = 0.0

    @property
    def num_requests(self) -> int:
        return self.num_prompts * self.turns

    @property
    def most_tokens(self) -> int:
        """The most tokens of one sequence, by what its requests announce."""
        return self.prefix_len + self.turns * (self.input_len.most + self.output_len.most)

    def scripts(self, vocab_size: int, seed: int) -> Iterator[Script]:
        """Make the scripts, the same ones for the same seed. Input lengths, output lengths,
        arrivals and ids have separate generators, so that changing one does not change the
        others."""
        inputs, outputs, gaps, ids = _generators(seed)
        maker = PromptMaker(vocab_size, ids)
        prefixes = [maker.make(self.prefix_len) for _ in range(self.num_prefixes)]
        moments = arrivals(self.request_rate, self.burstiness, gaps)
        for number in range(self.num_prompts):
            turns = [
                (maker.make(self.input_len.sample(inputs)), self._sampling(outputs))
                for _ in range(self.turns)
            ]
            prompt, sampling = turns[0]
            yield Script(
                Task(
                    request_id=str(number),
                    arrival=next(moments),
                    prompt_token_ids=prefixes[number % self.num_prefixes] + prompt,
                    sampling=sampling,
                ),
                tuple(Turn(self.think, added, its) for added, its in turns[1:]),
            )

    def _sampling(self, rng: np.random.Generator) -> SamplingParams:
        return _sampling(self.output_len.sample(rng), self.output_len.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A workload from a dataset.

    Attributes:
        asks: the requests, in order of arrival.
        request_rate: arrivals a second, drawn instead of the file's; None keeps those of the file.
        burstiness: the burstiness of the arrivals that `request_rate` draws.
    """

    asks: Sequence[Ask]
    request_rate: float | None = None
    burstiness: float = 1.0

    @property
    def num_requests(self) -> int:
        return len(self.asks)

    @property
    def most_tokens(self) -> int:
        """The most tokens of one sequence, by what its request announces."""
        return max(ask.prompt_tokens + ask.max_tokens for ask in self.asks)

    def scripts(self, vocab_size: int, seed: int) -> Iterator[Script]:
        _, _, gaps, ids = _generators(seed)
        maker = PromptMaker(vocab_size, ids)
        moments: Iterator[float] = iter(ask.arrival for ask in self.asks)
        if self.request_rate is not None:
            moments = arrivals(self.request_rate, self.burstiness, gaps)
        for number, (ask, arrival) in enumerate(zip(self.asks, moments, strict=False)):
            yield Script(
                Task(
                    request_id=str(number),
                    arrival=arrival,
                    prompt_token_ids=ask.prompt or maker.make(ask.prompt_tokens),
                    sampling=_sampling(ask.output_tokens, ask.max_tokens),
                    origin=Origin(user=ask.user) if ask.user else Origin(),
                    priority=ask.priority,
                )
            )


def _sampling(length: int, announced: int) -> SamplingParams:
    """Greedy sampling for an output of `length` tokens that announces `announced` tokens
    (`engine.driving.traffic.Task`)."""
    return SamplingParams(temperature=0.0, min_tokens=length, max_tokens=announced)


def _generators(seed: int) -> list[np.random.Generator]:
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(4)]
