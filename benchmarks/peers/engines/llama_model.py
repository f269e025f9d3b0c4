"""Converter: a checkpoint of Qwen2 or Qwen3 in bfloat16 to a GGUF file without a tokenizer.

It is quantized by llama.cpp itself, with no matrix of importance, which needs text. `Q4_K_M` takes
rows of 256 weights and gives other types to matrices whose rows are no multiple of that.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray


def convert(checkpoint: Path, target: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    unfinished = target.with_suffix(".unfinished")
    # Both libraries name these models alike, as `qwen2` and `qwen3`.
    writer = gguf.GGUFWriter(unfinished, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    kind = gguf.MODEL_ARCH[config["model_type"].upper()]
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, bits in tensors(checkpoint / "model.safetensors"):
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if bits.ndim == 1:  # norms and biases, which llama.cpp wants in float32
            writer.add_tensor(ours, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            raw = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(ours, bits.view(np.uint8), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(target)


def tensors(path: Path) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """Name and bits of each bfloat16 tensor; numpy has no such type, so its reader will not do.

    The file begins with the length of a JSON header (8 bytes, little-endian), which has type, shape
    and place of each tensor in what follows it.
    """
    data = np.memmap(path, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    header: dict[str, Any] = json.loads(data[8 : 8 + length].tobytes())
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        if tensor["dtype"] != "BF16":
            raise ValueError(f"{name} is {tensor['dtype']}, not BF16")
        begin, end = (8 + length + offset for offset in tensor["data_offsets"])
        yield name, data[begin:end].view(np.uint16).reshape(tensor["shape"])


def quantize(source: Path, target: Path, form: str) -> None:
    import llama_cpp  # type: ignore[import-not-found]  # what is not quantized does without it

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{form}")
    unfinished = target.with_suffix(".unfinished")
    status = llama_cpp.llama_model_quantize(
        str(source).encode(), str(unfinished).encode(), ctypes.byref(params)
    )
    if status != 0:
        raise RuntimeError(f"llama_model_quantize returned {status}")
    unfinished.rename(target)


def main(checkpoint: Path, target: Path, form: str) -> None:
    if form == "bf16":
        convert(checkpoint, target)
        return
    plain = target.with_suffix(".bf16")
    convert(checkpoint, plain)
    quantize(plain, target, form)
    plain.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
