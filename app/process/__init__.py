"""How a command runs and ends: log, signals, complaints, crash reports, exit code."""
