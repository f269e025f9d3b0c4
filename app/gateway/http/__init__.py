"""Chat over HTTP, as OpenAI's and Anthropic's clients ask, in the same batch as the screen."""
