"""What clients ask over HTTP, as docs/http.md has it."""
