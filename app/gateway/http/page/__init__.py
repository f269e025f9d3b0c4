"""The page at /: chat and live dashboard in a browser, and the data that it is fed with."""
