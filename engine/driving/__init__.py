"""A workload put through a core, in real time or in virtual time."""
