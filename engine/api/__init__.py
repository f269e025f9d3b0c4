"""The calls that the rest of the program may make to an engine, and the plain data of their
answers.

Any thread may call an `EngineClient`, and every call but `shutdown` returns at once. Nothing here
imports torch, a screen or a gateway.

`EngineConfig` is the envelope that memory was sized for; it cannot change while a model is loaded.
`Knobs` is everything that can change between two steps. `KnobLedger` (`engine.core.ledger`)
validates a change against the envelope on the caller's thread, and applies all of it or nothing.
The core reads the knobs once a step. Each change is recorded with its author, its time and its
step, and can be undone, alone or together with the earlier presses of the same turn of the knob.
Each knob is shown with its requested value beside the effective one, and with the reason where they
differ.
"""
