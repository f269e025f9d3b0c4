"""Keys: the bindings by place, the key bar and the help."""
