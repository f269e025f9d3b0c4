"""Encodes chats to token ids, in separate processes, and converts token ids to text as they come.

Processes
---------

Chat templates and tokenizers are the model's own code, run on text from strangers: they may panic,
never return or take all memory. So prompts are encoded in separate processes (`EncoderPool`). A
process makes the tokenizer, or gets it pickled, and needs no torch. It takes 70 MB, and its start
takes 2 to 3 s of a core. The first starts while the weights are loaded, a second one once a prompt
has waited for 0.25 s. The program itself has no tokenizer, and decodes by a table of the tokens
(`TokenTable`), unless only the tokenizer's own code decodes. A prompt may take 10 s, and 20 s more
for each MB of its text. Where the platform can limit memory (Linux), it may take 512 MiB, and 1 KiB
more for each byte of its text. A prompt that needs more is refused, and a process that ended over
it is replaced. A prompt whose process was killed (SIGKILL: by the system or an operator) is tried
once more; one that crashed its process is not.

Users take turns (`turns`). The user who has used the least time is next, and one prompt of each
user is encoded at a time, in order of arrival. Replies that are read for tool calls have turns of
their own, so that the end of a reply does not wait for its user's prompts. A prompt is refused
before its turn if its text (including tools and template arguments) has more bytes than
`max_model_len` times the vocabulary's longest token.

Prompts
-------

A prompt continues from the token ids of the conversation so far, so that the cache has them, as
long as the template would write the same text after them. Tools and arguments of the template
(`enable_thinking`) must be those of that context. Otherwise the prompt is rendered anew: for
example where the template drops the thinking of old replies, whose tokens are in those ids.

A reply that was cut off is continued (`Submission.num_partial`): the prompt ends with the reply's
own token ids, or with its text and the markup of its thinking (`partial_text`) where the ids are
not kept. The processor reads these tokens again, so that a cut character, tag or stop string
becomes whole. Over HTTP, the part of a reply that a client has written belongs to the prompt
(`repeats_partial`): its tokens are read to know where the text continues, and are neither sent nor
counted.

Thinking
--------

Thinking is separated from the content (`parts`). The tags are those that the chat template writes
or looks for, or that are tokens of the vocabulary (`thinking`), or the channels of gpt-oss
(`channels`); no model is known by its name. The end of the prompt says whether the reply begins
within the thinking. Nothing else in a template tells: Qwen3's cuts old replies at the closing tag,
and its new ones need not think; those of DeepSeek V3.1 and GLM-4.7 write a closing tag alone before
replies without thinking. If the prompt does not open the thinking and yet replies begin with it,
the model's entry in `models.toml` says so (`begins_thinking`). Without that entry such a reply is
sent as content until its closing tag comes. The tag is then dropped, the sent text stays content,
and the log names the key, once for each model.

Parts are decided on the text as it is detokenized. Stop strings are matched independently, on the
same text as without parts, and a character is output once both are certain about it. Text may be
held back because a tag is split between tokens.

Tool calls
----------

Calls are read in the form in which the chat template itself writes them (`forms`). The template
gets a chat with two calls whose names and arguments are known, and their places in its output show
how calls begin and end, and whether arguments are JSON, tags or Python. If the template writes no
calls, the form comes from a table (`known_form`), by a tag in the template or the vocabulary, and
the calls in the history are written into the messages' contents. A tokenizer may state the form
instead (`response_template`, which transformers runs). A reply that begins with the JSON of a call
of an offered function is a call in any case, because models forget the tags. Where a template
refuses the clients' call ids (it wants nine letters or digits, or `functions.NAME:0`), they are
replaced. A request with tools is refused if the template does not write tools.

The text streams as it is written, markup included. When a reply to a request with tools has ended
and was not cut off, its token ids go to an encoding process, and its end waits for the answer
(`Finish.tool_use`). The limits of time and memory are those of a prompt. If a reply cannot be read
it stays text, and the log has the reason, once for each model. After one that took too much time or
memory, no more replies of that model are read. The next turn continues from the ids as the model
wrote them, if the template would write the same text after these calls.

Clients over HTTP need not wait for the end: `ToolCallBoundary` finds the text that no call can
include (`Delta.num_certain`). When a model is loaded, `openings` collects the texts with which a
call may begin, from its form or its response template. Python's own parser reads the template's
expressions. An opening consists of the characters with which every match must begin. The expression
is then also tried on other characters, because to the `regex` library it may mean more. If an
expression may begin with anything, no text is certain before the end. `ToolUse.content` always
begins with the certain text, even if the template would change it.

Structures
----------

`Grammars` first compiles a structure in an encoding process, whose time and memory are limited.
Only if that succeeds is the structure compiled in the program, on an encoding thread. It keeps the
last 64. The vocabulary is prepared as soon as a model is loaded, on a thread of its own, because
this holds the interpreter's lock for 0.3 s, which would delay running replies. The grammar goes to
the runner with the request (`NewSequence.grammar`), so nothing is compiled in a step.
"""
