"""Files and batches: requests of a file, answered one by one at the lowest priority.

    client -> Upload -> FormReader -> LineCutter -> Shelf -> store (a row a line)
              NewBatch -> BatchKeeper -> BatchRun -> Room -> Answerer -> EngineClient.submit
                                            +-> Shelf -> store (the answer, under its line's number)

`Batching` has the parts, and `tui batch` has the same `Answerer`.

- A batch is under the lease of the program that runs it, as a request over MQTT is. `BatchKeeper`
  looks every 2 s for those without a live lease. A property test has two programs run, cancel,
  crash and end one.
- `BatchRun` validates, answers and ends one batch; each change is in the store before the next. One
  transaction keeps all answers that came while the last one was written. A fault that may pass is
  tried again.
- `Room` decides when the engine gets the next line. It leaves slots to others, looks at the last
  step twenty times a second, and ends the lines that have the fewest tokens where others need their
  place. So no order of the queue has to know batches.
- `Shelf` calls the store on a thread of its own and raises its errors as faults. It opens the store
  at the first call, and again as long as that fails, so that chat over HTTP needs none.
- `Sweep` removes files that were deleted, have expired, or were begun by a program that died, and
  shrinks the database, part by part.
"""
