"""Modules that look at values, on the meta device: which are passed, and which are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from transformers import DbrxConfig, DbrxForCausalLM

from engine.api.errors import ModelError
from engine.model.tracing.text_part import Reads
from engine.model.tracing.trace import trace
from engine.model.tracing.valueless import passing_values


class Chooser(nn.Module):
    """Computes what its input's values say."""

    def __init__(self, looks_by: str = "bool") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))
        self.looks_by = looks_by

    def forward(self, x: Tensor) -> Tensor:
        if self.looks_by == "bool":
            return x @ self.weight if bool(x.sum() > 0) else x
        if self.looks_by == "nonzero":
            return x[x[:, 0].nonzero()]
        if self.looks_by == "list":
            return x[x[:, 0].tolist()]
        raise ValueError("it is broken")


class Around(nn.Module):
    """Attends, if that is wanted, and takes what another module gives apart."""

    def __init__(self, inner: nn.Module, *, attends: bool = False, apart: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.linear = nn.Linear(4, 4)
        self.attends, self.apart = attends, apart
        self.attended = 0

    def forward(self, x: Tensor) -> Tensor:
        self.attended += self.attends
        x = self.linear(x)
        if self.apart:
            x, _, _ = self.inner(x)
            return x
        return x + self.inner(x)


class Model(nn.Module):
    def __init__(self, around: Around) -> None:
        super().__init__()
        self.around = around
        self.passed: list[nn.Module] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.around(x) * 2  # type: ignore[no-any-return]

    @contextmanager
    def passing(self) -> Iterator[None]:
        with (
            torch.device("meta"),
            passing_values(self, lambda: self.around.attended, self.passed.append),
        ):
            yield


def model(inner: nn.Module, **how: bool) -> Model:
    return Model(Around(inner, **how)).to("meta")


X = torch.zeros(2, 4, device="meta")


@pytest.mark.parametrize("looks_by", ["bool", "nonzero", "list"])
@pytest.mark.parametrize("attends", [False, True])
def test_the_smallest_module_that_looks_at_values_is_passed(looks_by: str, attends: bool) -> None:
    whole = model(Chooser(looks_by), attends=attends)
    forward = whole.around.inner.forward
    with pytest.raises((RuntimeError, NotImplementedError)):
        whole(X)
    with whole.passing():
        assert whole(X).shape == X.shape
    assert whole.passed == [whole.around.inner]
    assert whole.around.inner.forward == forward


def test_if_that_is_of_no_use_the_module_around_it_is_passed() -> None:
    whole = model(Chooser(), apart=True)
    with whole.passing():
        assert whole(X).shape == X.shape
    assert whole.passed == [whole.around.inner, whole.around]


def test_what_attends_is_not_passed() -> None:
    whole = model(Chooser(), apart=True, attends=True)
    with whole.passing(), pytest.raises(ValueError, match="unpack"):
        whole(X)


def test_what_is_broken_is_not_passed() -> None:
    whole = model(Chooser("nothing"))
    with whole.passing(), pytest.raises(ValueError, match="it is broken"):
        whole(X)
    assert whole.passed == []


def test_what_attention_refuses_is_not_passed() -> None:
    class Refused(Chooser):
        def forward(self, x: Tensor) -> Tensor:
            raise ModelError("attention on meta tensors is refused")

    whole = model(Refused())
    with whole.passing(), pytest.raises(ModelError):
        whole(X)


def test_what_is_passed_counts_as_read() -> None:
    whole = model(Chooser())
    whole.around.linear = nn.Identity()
    with Reads(whole) as read, whole.passing():
        whole(X)
    assert read.unread() == ()  # it was called
    held = Model(Around(nn.Sequential(nn.Linear(4, 4)))).to("meta")
    with Reads(held) as read:
        read.all_of(held.around.inner)
    assert read.unread() == ("around.linear",)


def test_a_mixture_that_looks_for_its_experts_is_traced() -> None:
    config = DbrxConfig(
        d_model=64,
        n_heads=4,
        n_layers=2,
        vocab_size=64,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "hidden_size": 64},
    )
    traced = trace(DbrxForCausalLM, config, torch.float32)
    assert (traced.shape.num_heads, traced.shape.num_kv_heads, traced.unread) == (4, 2, ())
    assert traced.num_elements >= sum(one.numel() for one in DbrxForCausalLM(config).parameters())
