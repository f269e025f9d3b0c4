"""load_model and memory: what it is divided for, and that nothing of a spent model keeps any."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.api.errors import ModelError
from engine.model.loading import loader, plan
from engine.model.program.verify import MismatchError
from tests.support.loading import Recorded, load, refusal, weights_of
from tests.support.zoo import MAX_LEN

pytestmark = pytest.mark.usefixtures("encodes_here")


@pytest.mark.usefixtures("modules")
def test_close_lets_the_weights_go(folder: Path) -> None:
    loaded = load(folder)
    model = weakref.ref(weights_of(loaded))
    loaded.close()
    gc.collect()
    assert model() is None


def test_a_model_that_was_refused_is_gone_when_the_next_one_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[weakref.ref[PreTrainedModel]] = []
    left: list[PreTrainedModel | None] = []

    def refuse(model: PreTrainedModel, *_: object, **__: object) -> None:
        refused.append(weakref.ref(model))
        raise ModelError("refused")

    def free_memory(device: torch.device) -> int:
        left.extend(ref() for ref in refused)
        return 1 << 32

    with monkeypatch.context() as patched:
        patched.setattr(loader, "checked_forward", refuse)
        refusal(folder)
    monkeypatch.setattr(plan, "free_memory", free_memory)
    gc.disable()  # in a cycle, the refused model would stay until the collector happens to run
    try:
        load(folder).close()
    finally:
        gc.enable()
    assert left
    assert left == [None] * len(left)


def test_a_model_spent_on_kernels_that_are_wrong_is_gone_when_torch_gets_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spent: list[weakref.ref[PreTrainedModel]] = []
    check, read = loader.checked_forward, loader.load_weights

    def wrong(model: PreTrainedModel, *args: Any, **known: Any) -> Any:
        if args[2] == "torch":
            return check(model, *args, **known)
        spent.append(weakref.ref(model))
        raise MismatchError("a kernel is wrong")

    def counted(*args: Any) -> PreTrainedModel:
        assert not any(one() for one in spent)
        return read(*args)

    monkeypatch.setattr(loader, "checked_forward", wrong)
    monkeypatch.setattr(loader, "load_weights", counted)
    loaded = load(folder)
    assert len(spent) == 1
    assert loaded.card.attention == "torch"
    assert "a kernel is wrong; our kernels are not used" in caplog.text
    loaded.close()


def test_no_byte_of_weights_is_read_before_a_refusal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_memory", lambda device: 10 << 20)
    progress = Recorded()
    with pytest.raises(ModelError, match=r"does not fit on cpu: weights 0\.3 MiB"):
        load(folder, progress, num_blocks=None)
    assert [call for call in progress.calls if call[0] == "loading weights"] == []


@pytest.mark.needs("avx2")
class TestNativeKernels:
    """A CPU load is planned for the native kernels, and anew where they are given up."""

    # Torch's attention alone takes 256 MiB in a step.
    LITTLE, ENOUGH = 300 << 20, 400 << 20

    def test_the_pool_takes_what_torch_would_need(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan, "free_memory", lambda device: self.LITTLE)
        loaded = load(folder, num_blocks=None)
        assert loaded.card.attention.startswith("cpu")
        assert loaded.config.num_slots == 4 * MAX_LEN
        loaded.close()

    def test_torch_is_planned_for_once_the_kernels_are_given_up(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked = loader.checked_forward
        given_up: list[weakref.ref[PreTrainedModel]] = []
        free = self.LITTLE

        def check(model: PreTrainedModel, *args: Any, **known: Any) -> Any:
            if args[2] == "cpu":
                given_up.append(weakref.ref(model))
                raise MismatchError("the kernel for norm differs")
            return checked(model, *args, **known)

        def free_memory(device: torch.device) -> int:
            # What is free is asked for when the first model is gone.
            assert [model() for model in given_up] in ([], [None])
            return free

        monkeypatch.setattr(loader, "checked_forward", check)
        monkeypatch.setattr(plan, "free_memory", free_memory)
        assert "does not fit on cpu" in refusal(folder, num_blocks=None).message
        assert given_up.pop()() is None

        free = self.ENOUGH
        loaded = load(folder, num_blocks=None)
        assert loaded.card.attention == "torch"
        loaded.close()


def test_memory_that_runs_out_all_the_same_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nAnd more")

    monkeypatch.setattr(loader, "TorchRunner", no_memory)
    assert refusal(folder).message.startswith(
        f"cpu ran out of memory while {folder.name} was loaded, with "
    )
