"""Model files: checkpoints, configurations and tokenizers, within bounds, and kept findings.

Anyone may have made the folder. A file is read only if it is a regular one, after links, of at most
the size that its kind may have (`reading`, `folder`; a `config.json` 4 MiB, a tokenizer's file 128
MiB). The tensors of a safetensors header must fill their file, each byte once (`checkpoint`). A
`pytorch_model.bin` holds a program that makes tensors; it is read and never run (`pickled`): its
names, shapes and offsets are followed on plain data, any other call is refused, and the weights are
read from their offsets. The sizes of a configuration must be ones that its weights can have
(`sizes`), before transformers builds a model from them. Errors of transformers, tokenizers or
Jinja, panics in Rust included, end the load with a sentence that names the folder and the stage
(`blame`). Errors show unprintable text as Python's `repr` does.
"""
