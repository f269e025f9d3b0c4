"""script: what the users of the demonstration ask, one after the other."""

from __future__ import annotations

SYSTEM = "You are a helpful assistant. Answer the questions of the user."
SAMPLING = {"temperature": 0.0, "max_tokens": 96}
SCRIPTS = (
    ("Hello!", "My name is Anna.", "What is my name?"),
    ("What is the capital of France?", "And of Japan?", "Thank you!"),
    ("What is 7 + 2?", "What is 3 times 4?", "What is 2 + 3?"),
    ("Why is the sky blue?", "Why does it rain?", "How is a rainbow made?"),
    ("Tell me a story.", "Tell me a poem.", "Good night!"),
    ("How many days are in a week?", "Name the days of the week.", "How long is a year?"),
    ("What sound does a cow make?", "What does a cat eat?", "Why are bees important?"),
    ("Write hello world in Python.", "Write a loop in Python.", "Thanks for your help."),
)
