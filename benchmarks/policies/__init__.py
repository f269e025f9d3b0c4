"""Every policy on the same workloads, simulated at the published scale and run on this machine."""
