"""GGUF: reads the header of a file, and makes a configuration and a tokenizer of it.

A `config.json` or a tokenizer beside the file comes first. `header` reads the header once, from a
memory map. The libraries' readers parse it in Python value by value, or follow a count beyond the
end of the file, and each of their functions reads it again. A model in parts is read from any of
them. `config` renames the keys by transformers' table and adds those that it leaves out.
`tokenizer` makes a tokenizer of parts of the tokenizers library. Its ids must equal those of
llama.cpp, on which files are tested: `splits` has the expressions of each `tokenizer.ggml.pre` that
llama.cpp writes, and the tests keep llama.cpp's own answers. A reply ends with the tokens that the
file states, with those that llama.cpp knows by name, and, for every model, with the token that the
chat template writes after a reply (`ChatEncoder.turn_ends`).
"""
