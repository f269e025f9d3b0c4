"""Who gets how many tokens in a step: scheduler, composer, queue orders, groups."""
