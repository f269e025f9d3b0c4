"""The modules of the engine whose functions run in a plain prefill step and a plain decode step.

python -m tests.support.plain_step    # prints them, with their lines of code
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path
from types import FrameType

from engine.api.client import Submission
from engine.api.sampling import SamplingParams
from tests.support.harness import CoreHarness

ROOT = Path(__file__).parents[2]
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def files_of_a_plain_step() -> set[str]:
    """Paths of the modules of `engine` that run while a core computes a prompt, and then a token.

    The core has no host pool, no states, no pins and no groups. Making an object counts as a
    function of the module that defines its class.
    """
    core = CoreHarness().core
    sampling = SamplingParams(max_tokens=4, temperature=0.0)
    core.add_request(Submission(request_id="plain"), [1, 2, 3, 4, 5], sampling)
    modules: set[str] = set()

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            name = str(frame.f_globals.get("__name__"))
            # Tuples with names are made by functions of modules that do not exist.
            made = name.startswith("namedtuple_")
            modules.add(frame.f_locals["_cls"].__module__ if made else name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        tokens = [output.token_ids for _ in ("prefill", "decode") for output in core.step()]
    finally:
        sys.setprofile(before)
    assert [len(token_ids) for token_ids in tokens] == [1, 1]
    return {f"{m.replace('.', '/')}.py" for m in modules if m.split(".")[0] == "engine"}


def lines_of_code(text: str) -> int:
    """Lines that have more than a comment or a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return len(lines)


if __name__ == "__main__":
    total = 0
    for path in sorted(files_of_a_plain_step()):
        count = lines_of_code((ROOT / path).read_text(encoding="utf-8"))
        total += count
        print(f"{count:6,}  {path}")
    print(f"{total:6,}  in all")
