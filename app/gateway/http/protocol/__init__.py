"""The requests of clients over HTTP, as docs/http.md describes them."""
