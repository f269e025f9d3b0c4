"""What a model keeps of a sequence beside keys and values: convolutions, delta nets, Mamba."""
