"""Every policy on the same loads, simulated at the published scale and run on this machine."""
