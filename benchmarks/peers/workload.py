"""Workload: prompts with fixed output lengths and arrival times, the same for every peer."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

# Ids of prompts are below this, for every model has these.
VOCAB_SIZE = 32_000
# Token ids below this are reserved by tokenizers.
_FIRST_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of one run.

    Attributes:
        prompts: token ids of each request.
        output_tokens: how many output tokens each request gets, whatever they are.
        arrivals: when requests come, in seconds after the start, ascending; all 0 is a batch.
        shared_tokens: with how many tokens in common all prompts begin.
    """

    prompts: tuple[tuple[int, ...], ...]
    output_tokens: int
    arrivals: tuple[float, ...]
    shared_tokens: int = 0

    @classmethod
    def from_json(cls, workload: dict[str, Any]) -> Workload:
        return cls(
            tuple(tuple(prompt) for prompt in workload["prompts"]),
            workload["output_tokens"],
            tuple(workload["arrivals"]),
            workload["shared_tokens"],
        )

    @property
    def is_batch(self) -> bool:
        """Whether all requests are there from the start."""
        return not any(self.arrivals)

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many tokens each sequence has at its end."""
        return tuple(len(prompt) + self.output_tokens for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a workload. Each round has new prompts, so that none are cached from the last.

    Attributes:
        shared_tokens: how many of the prompt tokens all prompts of a workload begin with.
        is_poisson: whether requests come by a Poisson process; otherwise they come all at once.
    """

    name: str
    sequences: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    is_poisson: bool = False

    def make(self, round_: int, rate: float | None = None) -> Workload:
        """Make the workload of a round.

        Args:
            rate: requests a second, if they come by a Poisson process; None has all come at once.
        """
        rng = random.Random(f"{self.name} {round_}")

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(rng.randrange(_FIRST_TOKEN, VOCAB_SIZE) for _ in range(count))

        shared = tokens(self.shared_tokens)
        own = self.prompt_tokens - self.shared_tokens
        prompts = tuple(shared + tokens(own) for _ in range(self.sequences))
        arrivals = [0.0]
        while len(arrivals) < self.sequences:
            gap = rng.expovariate(rate) if self.is_poisson and rate is not None else 0.0
            arrivals.append(arrivals[-1] + gap)
        return Workload(prompts, self.output_tokens, tuple(arrivals), self.shared_tokens)

    def shorter(self) -> Recipe:
        """The same kind of workload in a fraction of the time."""
        return replace(
            self,
            sequences=min(self.sequences, 8),
            prompt_tokens=min(self.prompt_tokens, 512),
            output_tokens=min(self.output_tokens, 16),
        )

    def __str__(self) -> str:
        count = f"{self.sequences} sequences" if self.sequences > 1 else "one sequence"
        shared = f", {self.shared_tokens} of them shared" if self.shared_tokens else ""
        return f"{count}, {self.prompt_tokens} tokens in{shared}, {self.output_tokens} out"


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("1x128", 1, 128, 64),
        Recipe("8x128", 8, 128, 64),
        Recipe("32x128", 32, 128, 64),
        Recipe("8x1024", 8, 1024, 128),
        Recipe("chat", 24, 320, 64, shared_tokens=256, is_poisson=True),
        Recipe("prefill", 1, 2048, 1),
    )
}
