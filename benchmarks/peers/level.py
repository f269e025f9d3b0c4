"""Level: the instructions that all peers of a run are held to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """A level of instructions, as batchdeck's kernels are compiled for it.

    Attributes:
        onednn: the most that oneDNN may use, as its ONEDNN_MAX_CPU_ISA has it.
        vectors: the most that torch's own kernels may use, as its ATEN_CPU_CAPABILITY has it.
        ggml: what llama.cpp is built with beside AVX2, as its options name it.
        dtype: in what torch and oneDNN multiply a model in bfloat16. Without AVX-512 oneDNN has no
            such products, and torch's own make 1 GFLOPS, so that everybody takes float32.
    """

    name: str
    onednn: str
    vectors: str
    ggml: tuple[str, ...] = ()
    dtype: str = "bfloat16"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of processes that compute by torch or oneDNN. They are read at the first
        product, and not when torch is imported."""
        return {
            "ONEDNN_MAX_CPU_ISA": self.onednn,
            "ATEN_CPU_CAPABILITY": self.vectors,
            "MKL_ENABLE_INSTRUCTIONS": self.vectors.upper(),
        }


_AVX512 = ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")

LEVELS = {
    level.name: level
    for level in (
        Level("avx2", "AVX2", "avx2", dtype="float32"),
        Level("avxvnni", "AVX2_VNNI", "avx2", ("AVX_VNNI",), dtype="float32"),
        Level("avx512", "AVX512_CORE_BF16", "avx512", _AVX512),
        Level(
            "amx",
            "AVX512_CORE_AMX",
            "avx512",
            (*_AVX512, "AMX_TILE", "AMX_INT8", "AMX_BF16"),
        ),
    )
}
