"""Attention to latents against attention to the keys and values that are made of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from engine.cache.storage import CacheShape
from engine.model.attention.base import AttentionBackend, StepContext
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.attention.interface import attends_next, computing_step, paged_attention
from engine.model.attention.latent import Expansion
from engine.model.attention.torch_backend import TorchAttention
from engine.native import kernels
from tests.engine.model.attention.test_backends import BACKENDS, Case, dense

TOKENS, HEADS, CONTENT, POSITION, LATENT, VALUE = 20, 3, 5, 4, 12, 6
"""Tokens of a sequence, heads, and how long K c, r, c and V c are."""


@pytest.mark.parametrize(
    "backend",
    [TorchAttention(), BACKENDS["plain"](), *([CpuAttention()] if kernels() else [])],
    ids=lambda backend: backend.name,
)
@pytest.mark.parametrize("start", [0, 13, 19])
def test_heads_attend_as_to_keys_and_values_of_their_own(
    start: int, backend: AttentionBackend
) -> None:
    torch.manual_seed(1)
    storage = backend.storage(
        CacheShape(
            num_layers=2,
            num_blocks=3,
            block_size=16,
            num_kv_heads=1,
            head_dim=LATENT + POSITION,
            value_dim=LATENT,
            value_in_key=True,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
    )
    storage.clear_blocks([2, 0])
    expansion = Expansion(torch.randn(HEADS, CONTENT, LATENT), torch.randn(HEADS, VALUE, LATENT))
    latents, positions = torch.randn(TOKENS, 1, LATENT), torch.randn(TOKENS, 1, POSITION)
    query = torch.randn(TOKENS, HEADS, CONTENT + POSITION)
    slots = torch.tensor([*range(32, 48), *range(4)])
    storage.write(1, slots[:start], torch.cat((latents, positions), 2)[:start], latents)

    context = StepContext(
        backend=backend,
        storage=storage,
        slots=slots[start:],
        starts=np.array([start]),
        counts=np.array([TOKENS - start]),
        block_tables=np.array([[2, 0]]),
    )
    with computing_step(context, places={4: (0, 1)}, expansions={4: expansion}):
        handed = [x[start:].transpose(0, 1)[None] for x in (latents, positions)]
        goes_on = attends_next(4, handed[0], handed[1])
        assert [x.shape[2] for x in goes_on] == [1, 1], "nothing is made of the others"
        output, _ = paged_attention(
            nn.Module(), query[start:].transpose(0, 1)[None], *goes_on, None, scaling=0.25
        )

    content = torch.einsum("tc,hdc->thd", latents[:, 0], expansion.keys)
    key = torch.cat((content, positions.expand(-1, HEADS, -1)), dim=2)
    value = torch.einsum("tc,hdc->thd", latents[:, 0], expansion.values)
    case = Case([(start, TOKENS - start)], kv_heads=HEADS, groups=1)
    expected = dense(query[start:], key, value, start, case, None)
    torch.testing.assert_close(output[0].double(), expected, atol=2e-5, rtol=1e-5)
