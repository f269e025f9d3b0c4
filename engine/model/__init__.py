"""From a name to logits and tokens: registry, loader, gate, memory plan, runner, sampler."""
