"""The serving engine: a library that knows no screen, no broker and no event loop."""
