"""The batch: a request, the plan of a step, its tokens, and the model's shape that costs it.

`StepPlan` is plain data: rows of (sequence, start, count, new blocks), the sequences that the
runner is to learn or to forget, and the blocks that it is to copy, within the pool, to host memory
and back. The runner keeps token ids and block tables by sequence and derives the slots, so that a
plan has no cost per token.

A request's `num_computed_tokens` chases its `num_tokens` (vLLM V1). Prefill, chunked prefill,
decode, resumption after a preemption and prefix hits differ only in the gap between the two.
Progress counts from when it is planned: a row that will sample leaves a placeholder for its token
(`num_in_flight`), so that a runner of depth 2 gets the next plan before this one's tokens are
known. The runner of a processor has depth 1, that of a GPU depth 2.

A request for log-probabilities of its prompt (`prompt_logprobs`) uses no prefix of the cache and
forks nothing, since each position needs the logits of the one before. `num_logprobs_sent` counts
the tokens that its owner has got: after a preemption they are computed again, and never sent twice.
Each chunk is sent, packed (`PromptLogprobs`), when its step ends. With `max_tokens` 0 the last row
of the prompt does not sample, and the request ends with that step.
"""
