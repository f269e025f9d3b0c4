"""The core: plans a step, has it run and commits it, in one thread and by any clock."""
