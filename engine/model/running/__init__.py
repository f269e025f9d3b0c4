"""The forward pass of a loaded model, and the runner that executes steps with it."""
