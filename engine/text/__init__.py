"""Chats to token ids in processes of their own, and token ids to text as they come.

Processes
---------

Chat templates and tokenizers are the model's own code, run on text from strangers: they may panic,
never return or take all memory. So prompts are encoded in separate processes (`EncoderPool`). A
process gets the loaded tokenizer, pickled, and needs no torch. It takes 70 MB, and 2 to 3 s of a
core to start. The first starts while the weights are loaded, a second one once a prompt has waited
for 0.25 s. A prompt may take 10 s, and 20 s more for each MB of its text. Where the platform can
limit memory (Linux), it may take 512 MiB, and 1 KiB more for each byte of its text. A prompt that
needs more is refused, and a process that ended over it is replaced. A prompt whose process was
killed (SIGKILL: by the system or an operator) is tried once more; one that crashed its process is
not.

Users take turns (`turns`). The user who has used least is next, and one prompt of each user is
encoded at a time, in order of arrival. Replies that are read for tool calls take turns beside them,
so that an ending does not wait for its user's prompts. A prompt is refused before its turn if it
has more bytes than `max_model_len` of the vocabulary's longest tokens have, tools and arguments of
the template included.

Prompts
-------

A prompt continues from the token ids of the conversation so far, so that the cache has them, as
long as the template would write the same text after them. Tools and arguments of the template
(`enable_thinking`) must be those of that context. Otherwise the prompt is rendered anew: for
example where the template drops the thinking of old replies, whose tokens are in those ids.

A reply that was cut off is continued (`Submission.begun`): the prompt ends with the reply's own
token ids, or with its text and the markup of its thinking (`begun`) where these are not kept. The
processor reads these tokens again, so that a cut character, tag or stop string becomes whole. Over
HTTP, the part of a reply that a client has written belongs to the prompt (`repeats_begun`): its
tokens are read to know where the text continues, and are neither sent nor counted.

Thinking
--------

Thinking is separated from the content (`parts`). The tags are those that the chat template writes
or looks for, or that are tokens of the vocabulary (`thinking`), or the channels of gpt-oss
(`channels`); no model is known by its name. The end of the prompt says whether the reply begins
within the thinking. Nothing else in a template says so: Qwen3's cuts old replies at the closing
tag, and its new ones need not think; those of DeepSeek V3.1 and GLM-4.7 write a closing tag alone
before replies without thinking. An entry of `models.toml` states it where the prompt opens nothing
and replies do think (`begins_thinking`). A closing tag after content that opened nothing is not
shown, the content stays content, since streams have sent it, and the log names that key, once for
each model.

Parts are decided on the text as it is detokenized, and stop strings match beside them, on the same
text as ever; a character is output when both are certain of it. Text may be held back for a tag
that is cut between tokens.

Tool calls
----------

Calls are read in the form in which the chat template itself writes them (`forms`). The template
gets a chat with two calls whose names and arguments are known, and their places in its output show
how calls begin and end, and whether arguments are JSON, tags or Python. A model whose template
writes no call has a table there, chosen by a tag in the template or the vocabulary; the calls of
its history are in the contents. A tokenizer may state the form instead (`response_template`, which
transformers runs). A reply that begins with the JSON of a call of an offered function is a call in
any case, because models forget the tags. A template that refuses ids as clients make them (it wants
nine letters or digits, or `functions.NAME:0`) gets others. One that writes no tools is refused when
tools are offered.

The text streams as it is written, markup included. When a reply with offered tools has ended by
itself, its token ids go to a process once, and its end waits for the answer (`Finish.tool_use`),
within the bounds of a prompt. A reply that cannot be read stays text, and the log has the reason,
once for each model. After one that took too much time or memory, no more replies of that model are
read. A next turn continues from the ids as the model wrote them if the template, given the calls,
would write the same text after them.

Clients over HTTP need not wait for the end: `ToolCallBoundary` finds the text that no call can
include (`Delta.num_certain`). When a model is loaded, `openings` collects the texts with which a
call may begin, from its form or its response template. Python's own parser reads an expression;
only characters that certainly begin each match are taken, and the expression is then tried on other
characters, since `regex` may mean more by it. Where an expression may begin with anything, nothing
is certain before the end. `ToolUse.content` begins with the certain text, whatever the template
makes of it.

Structures
----------

`Grammars` compiles a structure in an encoding process first, where time and memory are bounded from
outside, and only if that ended well in the program, on a thread that encodes. It keeps the last 64.
The vocabulary is prepared on a thread of its own as soon as a model is loaded, because that holds
the interpreter's lock for 0.3 s. The grammar goes to the runner with the request
(`NewSequence.grammar`), so nothing is compiled in a step.
"""
