"""The batch: a request, the plan of a step, its tokens, and the model's shape that costs it."""
