"""Worker: OpenVINO GenAI's continuous batching. Its argument is the precision of its cache.

OpenVINO has no setting for the instructions that it may use. The oneDNN that it brings does honour
ONEDNN_MAX_CPU_ISA, and so do all products, and what is elementwise. Attention and norms go by the
processor and use AVX-512 where there is any. OpenVINO also asks oneDNN for products that are not
there without AVX-512 (of bfloat16, or of activations that it quantized), which ends in an error. So
it is told to compute in float32 there and to quantize no activations. All that was tried with
OpenVINO 2026.4.1 on a processor with AVX-512 and without AMX: its runtime model has `jit_avx512` at
norms, and an error of attention names the file AVX512F/executor_pa.cpp, whatever the variable says.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openvino  # type: ignore[import-not-found]
import openvino_genai  # type: ignore[import-not-found]

from benchmarks.peers.engines.held import held
from benchmarks.peers.serve import About, Served, Setup, drive, serve
from benchmarks.peers.workload import Workload

_BLOCK_SIZE = 32  # its own on processors
_SMALLEST_MATRIX = 2**15  # numbers; tables of angles and the like have fewer
_PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}


class OpenVino:
    def __init__(self, cache_precision: str | None) -> None:
        self._cache_precision = cache_precision

    def load(self, setup: Setup) -> About:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = setup.budget
        scheduler.max_num_seqs = setup.max_seqs
        scheduler.num_kv_blocks = setup.blocks(_BLOCK_SIZE, spare=32)
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties = {
            "INFERENCE_PRECISION_HINT": _PRECISIONS[setup.dtype],
            "INFERENCE_NUM_THREADS": setup.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if setup.dtype == "float32":
            if self._cache_precision is not None:
                raise ValueError("it takes no such cache where it computes in float32")
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        if self._cache_precision is not None:
            properties["KV_CACHE_PRECISION"] = self._cache_precision
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            setup.model, scheduler, "CPU", properties
        )
        self._names = itertools.count()
        self.run(Workload(((0,),), 1, (0.0,)))  # it has no cache before its first step
        cache_bytes = self._pipeline.get_metrics().cache_size_in_bytes
        per_token = cache_bytes / (scheduler.num_kv_blocks * _BLOCK_SIZE)
        precision = self._cache_precision or "its default"
        return About(
            f"openvino-genai {version('openvino-genai')}, openvino {version('openvino')}",
            f"{setup.budget} tokens a step, dynamic split-fuse, prefix caching, LATENCY hint, "
            f"{setup.dtype}, cache in {precision} ({per_token:,.0f} bytes a token)",
            _weights(Path(setup.model)),
        )

    def run(self, workload: Workload) -> list[Served]:
        self._handles: dict[int, openvino_genai.GenerationHandle] = {}
        return drive(self, workload)

    def submit(self, index: int, prompt: Sequence[int], output_tokens: int) -> None:
        config = openvino_genai.GenerationConfig()
        config.do_sample = False
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.set_eos_token_id(0)  # there has to be one
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._handles[index] = self._pipeline.add_request(next(self._names), ids, config)

    def step(self) -> Iterator[tuple[int, int]]:
        self._pipeline.step()
        return (
            (index, token)
            for index, handle in self._handles.items()
            if handle.can_read()
            for output in handle.read().values()
            for token in output.generated_ids
        )


def _weights(folder: Path) -> str:
    """The types of the constants that are matrices. Groups are a dimension of their own; scales and
    zero points are one wide."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    types, table = [], ""
    for node in openvino.Core().read_model(folder / "openvino_model.xml").get_ops():
        if node.get_type_name() != "Constant" or len(node.shape) < 2:
            continue
        if node.shape[-1] == 1 or math.prod(node.shape) < _SMALLEST_MATRIX:
            continue
        name = node.get_element_type().get_type_name()
        if node.shape[0] == vocab_size:
            table = name
        else:
            types.append(name)
    return held(types, table)


if __name__ == "__main__":
    serve(OpenVino(sys.argv[1] if len(sys.argv) > 1 else None))
