"""Sampling meanings: how each sampling parameter affects a reply, in one line for users."""

from __future__ import annotations

# In the order of `SamplingParams`.
SAMPLING_MEANINGS = {
    "temperature": "0 always takes the most likely token; higher values are more varied",
    "top_k": "only the k most likely tokens; 0 is all",
    "top_p": "the fewest tokens that together have this probability; 1 is all",
    "min_p": "tokens at least this likely relative to the most likely one; 0 is all",
    "repetition_penalty": "above 1, makes tokens that came in prompt or reply less likely",
    "presence_penalty": "subtracted once from tokens that came in the reply",
    "frequency_penalty": "subtracted from tokens for each time that they came in the reply",
    "logit_bias": "added to logits of token ids before all else; -100 bans, 100 forces",
    "logprobs": "log-probability and rank of each token, and so many of the likeliest",
    "prompt_logprobs": "the same of the tokens of the prompt, which are then all computed",
    "seed": "where the randomness comes from; not set, each reply draws its own",
    "min_tokens": "the reply does not end before so many tokens",
    "max_tokens": "most tokens of a reply; not set, all that fit",
    "stop": "a text or a list of texts: each ends the reply and is no part of it",
    "stop_token_ids": "a list of token ids: each ends the reply",
    "ignore_eos": "go on past the model's own end",
    "chat_template_kwargs": "arguments of the chat template, which differ from model to model",
    "tools": "functions that the model may call, as OpenAI's interface has them",
    "structure": "the form of the reply: a JSON Schema, an expression, choices, a grammar",
}
