"""GGUF: reads the header of a file, and makes a configuration and a tokenizer of it."""
