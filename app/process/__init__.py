"""How a command runs and ends: log, signals, watchdog, complaints, crash reports, exit code."""
