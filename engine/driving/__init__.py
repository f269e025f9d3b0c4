"""A workload put through a core, in real time or in virtual time.

With the wall clock and a model, `drive` is `tui bench`; with a virtual clock and a runner that
costs time, it is `tui simulate`.
"""
