"""The paged KV cache: block pool, prefix index, block tables, and the tensors behind them."""
