"""script: the questions of the demonstration's users, in order.

These are questions to which the built-in model has good answers, twice in a chat. Stories are not
among them: it makes up names for those, and forgets them on the way.
"""

from __future__ import annotations

SYSTEM = "You are a helpful assistant. Answer the questions of the user."
SAMPLING = {"temperature": 0.0, "max_tokens": 96}
SCRIPTS = (
    ("Hello!", "My name is Anna.", "What is my name?"),
    ("What is the capital of France?", "And of Japan?", "And of Italy?"),
    ("What is 7 + 2?", "What is 3 times 4?", "What is 2 + 3?"),
    ("Why is the sky blue?", "What is gravity?", "What is a star?"),
    ("Write a poem about the moon.", "Write a poem about my cat.", "Good night!"),
    ("How many days are in a week?", "Name the days of the week.", "How long is a year?"),
    ("What sound does a dog make?", "What does a cat eat?", "Why are bees important?"),
    ("Write hello world in Python.", "Write a loop in Python.", "Thanks for your help."),
)
