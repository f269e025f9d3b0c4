"""Chat over HTTP: requests as OpenAI's clients make them, in the same batch as the screen."""
