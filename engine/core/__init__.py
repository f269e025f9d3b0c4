"""The core: plans a step, runs it and commits it, in one thread and with any clock.

docs/a-step.md walks through a step. `EngineCore.step` is synchronous: it makes a plan, has
the runner compute it, and commits the result. It reads only the clock that it was given and never
sleeps, so that the same code runs in the host, the benchmark, the simulator and tests with a
scripted runner and a virtual clock.

A step that raises
------------------

When a step raises (out of memory, say), its prompts end with the error, because prompts make one
step larger than the last; requests that are being recomputed count as prompts. The step's decodes,
and the requests of plans started after it, keep their tokens and are recomputed. If the step had
no prompts, all its requests end. So every failure ends a request, and a broken device cannot loop.
Blocks that such a step was to copy to host memory are given up and computed again (`failures`).

After an illegal access every later call of CUDA in this process fails, while status and `/health`
would still report a healthy server. So a runner checks after a failure whether the device still
answers. If it does not, or if `MOST_FAILURES` steps in a row fail, the core raises
`DeviceLostError`, and the engine ends.

Views
-----

Each step leaves a `StepRecord` (phases, tokens, rows, FLOPs and bytes by the model's shape,
requests admitted, preempted and finished, and every block event in order) in a ring that any thread
may read. A `Draft` of a `Snapshot` is made between two steps, when a reader has asked for one and
when the engine falls idle: the engine's thread copies the data that changes, and the first reader's
thread computes the rest. An idle engine sleeps, and is woken for a snapshot only while requests
wait.

The block map has one segment for each run of blocks of the same state and holders. Beyond 2,048
runs neighbours are joined, and a segment then has the number of blocks of each state
(`engine.cache.pool_copy`). `EngineClient.block` asks for a single block by its number; the text
thread makes text of its tokens, which the prefix index keeps for blocks that nobody holds.

Latencies are kept as samples, the last 8,192 of each kind, and percentiles are those of the 60 s
before the reader's own now: while the engine sleeps, the windows of its last draft move on without
waking it. All times come from one monotonic clock. TTFT is the time from arrival to the first
token. TPOT is (end to end - TTFT) / (output tokens - 1), for a running request by its tokens so
far. ITL is the gap between two tokens, over all requests. A running request that misses a target
already counts against the goodput. The KV waste of a step is the share of token slots in used
blocks that hold nothing needed.

Pins
----

A pinned prefix is kept from eviction once it is computed. Pins may take the blocks that the pool
has beyond one sequence of the model's length, so that the head of the queue always fits beside
them.
"""
