"""Workers: each module here is one peer's side of the line protocol (`benchmarks.peers.serve`)."""
