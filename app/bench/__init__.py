"""Workloads, measurement and reports of `tui bench` and `tui simulate`."""
