"""Runs a workload through a core, in real or in virtual time.

With the wall clock and a model, `drive` is `tui bench`; with a virtual clock and a runner that
costs time, it is `tui simulate`.
"""
