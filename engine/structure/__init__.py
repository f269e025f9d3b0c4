"""Structures of replies: compiled to grammars over a vocabulary, and followed token by token.

A structure (a JSON Schema, any JSON object, an expression, choices, a grammar) comes from a
stranger. It becomes a grammar over bytes, which llguidance follows. `python -m
benchmarks.structure` compares that with its peer.

- `schemas` knows which parts of JSON Schema llguidance follows. Gateways ask it which keywords to
  leave out, where a client allows that, and the engine refuses the others by their JSON pointer. It
  has property names that the schema does not state spelled in one way.
- `rules` writes a structure in llguidance's notation, after a `Lead`: the text that a reply may
  have before it. Thinking is part of the grammar: free text up to the closing tag, as text or as a
  special token, or the messages of gpt-oss's analysis. The end of the prompt says whether the reply
  begins within it. If the prompt ends with a closing tag, the structure binds the first token.
  `rules` also limits the depth of a schema.
- `Compiler` bounds llguidance, and gives it a thread whose stack no source of 128 KiB overflows,
  the same in each process.
- `Matcher` follows one reply. `engine.model.step.masks` runs it beside the steps.

A mask acts after bias and penalties, at the point where suppressed tokens act in replies without a
structure. Where the structure may end, it allows the tokens that end an output. `min_tokens` and
`ignore_eos` remove these as long as another token is left, so that a structure is never broken and
always ends. Log-probabilities stay those of the model.
"""
