"""Files and batches: requests of a file, answered one by one at the lowest priority."""
