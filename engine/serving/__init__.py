"""The engine as a service: the threads around a core, and how models are loaded and replaced.

`EngineHost` is the only `EngineClient` so far. Its thread `engine` loads models, owns the core and
steps it. The thread `engine-text` (`TextThread`) turns the step's tokens into text, so that
detokenizing and stop strings are off the step's critical path. A stop string that it finds ends the
request when the core reads of it, a step or more later; the tokens computed past it are dropped.
Streams that share a `wake` are woken once per step.

Submissions, aborts, priorities and requests for another model pass through the text thread, then
through the mailbox. Messages about one request keep their order, as do the submissions of one user;
a request for another model waits for the prompts before it. Changes of knobs do not go this way:
they are made on the caller's thread, and the next plan reads them. The `n` replies to one request
share a prompt, which the first of them encodes (`Common`). A refusal is an end of a request like
any other: the stream ends with a type, a sentence and the field at fault.

The interpreter's lock
----------------------

The interface paints in the engine's interpreter, under the same lock. A device that takes 4 ms for
a step, and is kept two steps ahead, leaves the engine's thread 3.4 ms to be late. So threads hand
the lock over within 0.2 ms while a device computes or a model is loaded (`lock`), a reader computes
the figures that it asks for on its own thread, and the garbage collector rarely walks objects that
live as long as a model (`app.process.heap`). `python -m benchmarks.screen --models device` measures
this.

Another model
-------------

Requests submitted before the one for another model end on the old model. If a user has paused the
engine or lets it drain, that is lifted for them, and the status has their number. Later requests
wait in the text thread, not yet encoded. Then the old model is closed and the new one is loaded. A
newer request for a model, or the end of the program, cancels a load at its next report of progress;
the end of the program does not wait for a load that reports none (an import of torch). If a load
fails, the host loads the old model again, and the status has the reason. If there was no old model,
or it cannot be loaded either, all requests are refused with the reason until another model is
requested.

Failures, and the requests that they end
----------------------------------------

- A prompt cannot be encoded (template or tokenizer raise, panic, do not return or need too much
  memory), or brings its process down by a signal of its own (SIGSEGV, SIGABRT): that request, as an
  invalid one. A process that died is replaced.
- The encoding process is killed by others: the prompt is encoded once more; the second time the
  request ends with an error of the engine.
- A reply cannot be detokenized: that request; the core gets an abort.
- The tool calls of a reply cannot be read, or its model is closed meanwhile: none; the reply stays
  text.
- How tool calls begin cannot be found out within 10 s: none; a stream with tools sends its text at
  its end.
- A structure cannot be compiled within bounds, or takes too much to follow: that request.
- Logits are not finite: that request; its blocks of this step are not published.
- A step raises: its prompts, or all of its requests if it had no prompts (`engine.core`).
- A loader raises: the load, with the reason.
- A `wake` raises: none; it is logged.
- The device no longer computes (`noticing_loss`), or 8 steps fail in a row: all requests and the
  program.
- The engine thread or the text thread raises, the text thread is in one call for 30 s, or a step
  takes 300 s (or as long as a full one takes at 10 GFLOP/s, if that is more): all requests and the
  program. The status has `has_crashed`, and the exit code is 70.
- A load reports no progress: none; after a minute the status says for how long.
"""
