from __future__ import annotations

from dataclasses import replace

from engine.api.status import OffPath
from tests.widgets.samples import MODEL
from widgets.off_path import briefly, in_a_word, in_full

EMBED = OffPath("embed", 576, 1, "differs from the model by 0.0039", 0.004)
MIXER = OffPath("MambaMixer", 1024, 24, "no kernel of ours computes it")
SOME = replace(MODEL, off_path=(EMBED, MIXER))
ONE = replace(MODEL, off_path=(EMBED,))
NONE = replace(MODEL, off_kernels="sin in Layer is not read")


def test_a_model_wholly_on_the_fast_path_has_nothing_to_tell() -> None:
    assert [tell(MODEL) for tell in (briefly, in_a_word, in_full)] == ["", "", ""]


def test_operations_are_counted_and_told_with_cost_and_reason() -> None:
    assert (briefly(SOME), in_a_word(SOME)) == ("25 ops off kernels", "25 ops off")
    assert in_full(SOME) == (
        "torch computes 25 operations: embed of 576 columns (1 operation, <1% of a decode step:"
        " differs from the model by 0.0039); MambaMixer of 1,024 columns (24 operations: no kernel"
        " of ours computes it)"
    )
    assert briefly(ONE) == "1 op off kernels"


def test_a_model_that_runs_module_by_module_is_told_with_the_reason() -> None:
    assert (briefly(NONE), in_a_word(NONE)) == ("off kernels", "off kernels")
    assert in_full(NONE) == (
        "it runs module by module, without our kernels for its operations: sin in Layer is not read"
    )
