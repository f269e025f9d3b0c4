"""Typeset: typesets Markdown, parsed by markdown-it, in rows of a given width.

Textual's own Markdown makes a widget of each block. Below 20 replies, which are 2,000 widgets, a
fragment of a stream took 153 ms on average, mostly for a new layout of them all. As rows of one
widget it takes 7 ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

from markdown_it.tree import SyntaxTreeNode
from textual.content import Content, Span
from textual.highlight import HighlightTheme, TokenType, highlight
from textual.style import Style

from widgets.glyphs import Glyphs
from widgets.markdown import (
    CODE_KINDS,
    MAX_NESTING,
    TAB_SIZE,
    language_of,
    lines_of,
    markdown_parser,
)

EMPTY = Content()
MIN_WIDTH = 8
MIN_COLUMN = 3


class _Styles(HighlightTheme):
    """Names of styles, which the style sheet sets for each theme; the keys are Pygments' token
    names. Textual's own styles are fainter than the theme's, and its ANSI styles name some that do
    not exist."""

    STYLES: dict[TokenType, str] = {  # noqa: RUF012  # as Textual has it
        token: f".{kind}" for token, kind in CODE_KINDS.items()
    }


CODE_STYLES = frozenset(_Styles.STYLES.values())


# 60 lines take 35 ms; a whole reply is typeset again at its end, and at another width.
@lru_cache(maxsize=128)
def highlighted(code: str, language: str) -> Content:
    """`code` in the styles of `language`, or plain if that is unknown."""
    return highlight(code, language=language, theme=_Styles, tab_size=TAB_SIZE)


def code_blocks(markdown: str) -> list[str]:
    """The code of the code blocks in `markdown`, however deeply they are nested."""
    blocks = (t.content for t in markdown_parser().parse(markdown) if t.type == "fence")
    return [block.removesuffix("\n") for block in blocks]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of typeset text.

    Attributes:
        lead, tail: indentation, bullets and frames around the text, which are not copied with it.
        gap: the source text between the previous row and this one: a line break, or the blanks that
            wrapping removed.
    """

    text: Content = EMPTY
    lead: Content = EMPTY
    tail: Content = EMPTY
    gap: str = "\n"

    def behind(self, lead: Content) -> Row:
        """This row, with `lead` before it."""
        return replace(self, lead=lead + self.lead)


def wrap(text: Content, width: int) -> Iterator[Row]:
    """Rows of `text`, which may have line breaks. Lines break between words if possible."""
    for line in text.split("\n", allow_blank=True):
        line, position, gap = line.expand_tabs(TAB_SIZE), 0, "\n"
        for piece in line.wrap(max(width, MIN_WIDTH)):
            yield Row(piece, gap=gap)
            position += len(piece)
            start = position
            while position < len(line) and line.plain[position] == " ":
                position += 1
            gap = line.plain[start:position]


class Typesetter:
    """Typesets syntax trees in rows. Styles are names such as `.code` and `$text`, which are
    resolved when a row is drawn.

    Args:
        copy_key: the shown key that copies a block of code; empty if there is none.
    """

    def __init__(self, glyphs: Glyphs, *, copy_key: str = "") -> None:
        self.glyphs = glyphs
        self._copy = f" [{copy_key}] copy " if copy_key else " copy "
        # Complete lines of the growing code, their width, and their rows.
        self._grown: tuple[str, int, list[Row]] = ("", 0, [])
        self._bullet, self._quote = ("• ", "▌ ") if glyphs.unicode else ("* ", "| ")
        self._cross = "┼" if glyphs.unicode else "+"

    def set(self, node: SyntaxTreeNode, width: int) -> list[Row]:
        """The rows of one block."""
        match node.type:
            case "heading":
                return list(
                    wrap(self._inline(node).stylize(f".h{min(int(node.tag[1]), 3)}"), width)
                )
            case "bullet_list" | "ordered_list":
                return self._list(node, width)
            case "blockquote":
                lead = Content.styled(self._quote, ".faint")
                lead = lead if width - len(lead) >= MIN_WIDTH else EMPTY
                rows = self._flow(node.children, width - len(lead), spaced=True)
                return [row.behind(lead) for row in rows]
            case "fence" | "code_block":
                language = language_of(node.info)
                code = node.content.removesuffix("\n")
                return self.code(code, language, width, is_open=_is_open(node))
            case "hr":
                return [Row(Content.styled(self.glyphs.frame[1] * width, ".faint"))]
            case "table":
                return self._table(node, width)
        return list(wrap(self._inline(node), width))

    def _flow(self, nodes: Sequence[SyntaxTreeNode], width: int, *, spaced: bool) -> list[Row]:
        rows: list[Row] = []
        for node in nodes:
            if rows and spaced:
                rows.append(Row())
            rows += self.set(node, width)
        return rows

    def _list(self, node: SyntaxTreeNode, width: int) -> list[Row]:
        # In a tight list the parser hides the paragraphs.
        spaced = any(
            block.type == "paragraph" and not block.hidden
            for item in node.children
            for block in item.children
        )
        ordered = node.type == "ordered_list"
        first = int(node.attrs.get("start", 1))
        indent = len(f"{first + len(node.children) - 1}. ") if ordered else len(self._bullet)
        if width - indent < MIN_WIDTH:
            # There is no room for it, and text beside the screen is not seen.
            return self._flow(
                [block for item in node.children for block in item.children], width, spaced=spaced
            )
        rows: list[Row] = []
        for number, item in enumerate(node.children, first):
            if rows and spaced:
                rows.append(Row())
            mark = f"{number}. ".rjust(indent) if ordered else self._bullet
            lead = Content.styled(mark, ".mark")
            for row in self._flow(item.children, width - indent, spaced=spaced) or [Row()]:
                rows.append(row.behind(lead))
                lead = Content(" " * indent)
        return rows

    def code(self, code: str, language: str, width: int, *, is_open: bool = False) -> list[Row]:
        """The rows of a block of code. While it grows it is not highlighted, and its complete lines
        are typeset once."""
        left_top, line, right_top, _, left_bottom, right_bottom = self.glyphs.frame
        room = max(width - 4, MIN_WIDTH - 4)
        title = f" {language} " if language else ""
        title = title if len(title) < room - 6 else ""
        copy = EMPTY if is_open else Content.styled(self._copy, ".mark")
        copy = copy.stylize(Style.from_meta({"code": code}))
        rule = Content.styled(line * (room + 2 - len(title) - len(copy)), ".faint")
        top = Content.assemble(
            (left_top, ".faint"), (title, ".muted"), rule, copy, (right_top, ".faint")
        )
        if is_open:
            rows = self._open_lines(code, room)
        else:
            painted = highlighted(code, language) if language else Content(code)
            rows = self._code_lines(painted, room)
        bottom = left_bottom + line * (room + 2) + right_bottom
        return [Row(lead=top), *rows, Row(lead=Content.styled(bottom, ".faint"))]

    def _open_lines(self, code: str, room: int) -> list[Row]:
        """The rows of growing code."""
        before, room_before, rows = self._grown
        if room != room_before or not code.startswith(before):
            before, rows = "", []
        end = code.rfind("\n") + 1
        if end > len(before):
            new = Content(code[len(before) : end].removesuffix("\n"))
            rows = [*rows, *self._code_lines(new, room)]
            self._grown = code[:end], room, rows
        return [*rows, *self._code_lines(Content(code[end:]), room)]

    def _code_lines(self, code: Content, room: int) -> list[Row]:
        side = self.glyphs.frame[3]
        lead, rows = Content.styled(f"{side} ", ".faint"), []
        for line in code.split("\n", allow_blank=True):
            for index, piece in enumerate(line.expand_tabs(TAB_SIZE).fold(room)):
                tail = Content.styled(" " * (room - piece.cell_length) + f" {side}", ".faint")
                rows.append(Row(piece, lead, tail, gap="" if index else "\n"))
        return rows

    def _table(self, node: SyntaxTreeNode, width: int) -> list[Row]:
        lines = [
            [(self._inline(cell), str(cell.attrs.get("style", ""))) for cell in row.children]
            for section in node.children
            for row in section.children
        ]
        columns = [
            max(MIN_COLUMN, *(cells[i][0].cell_length for cells in lines if i < len(cells)))
            for i in range(len(lines[0]))
        ]
        room = width - 3 * (len(columns) - 1)
        while sum(columns) > room and max(columns) > MIN_COLUMN:
            columns[columns.index(max(columns))] -= 1
        divider = Content.styled(f" {self.glyphs.frame[3]} ", ".faint")
        rows: list[Row] = []
        for number, cells in enumerate(lines):
            wrapped = [text.wrap(w) for (text, _), w in zip(cells, columns, strict=False)]
            for pieces in zip_longest(*wrapped, fillvalue=EMPTY):
                aligned = [
                    _align(piece, w, style)
                    for piece, w, (_, style) in zip(pieces, columns, cells, strict=False)
                ]
                row = divider.join(aligned)
                rows.append(Row(row if number else row.stylize(".strong")))
            if number == 0:
                dash = self.glyphs.frame[1]
                rule = f"{dash}{self._cross}{dash}".join(dash * w for w in columns)
                rows.append(Row(Content.styled(rule, ".faint")))
        return rows

    def _inline(self, node: SyntaxTreeNode) -> Content:
        """The text of a block with its spans. Unknown markup stays as written."""
        text: list[str] = []
        spans: list[Span] = []
        _append_text(node, 0, text, spans)
        return Content("".join(text), spans=spans)


class Document:
    """The rows of a growing text.

    Attributes:
        rows: the rows after the last `grow`.
    """

    def __init__(self, typesetter: Typesetter, width: int) -> None:
        self.rows: list[Row] = []
        self._typesetter = typesetter
        self._width = width
        self._text = ""
        # The last block may still change; the text before it does not.
        self._tail_start = 0
        self._tail_row = 0

    def grow(self, text: str, *, complete: bool) -> None:
        """Typeset `text`.

        While the text grows, only its last block is typeset again. With `complete`, all of it is,
        because later text can change earlier blocks (link references, loose lists).
        """
        if complete or not text.startswith(self._text):
            self._tail_start = self._tail_row = 0
        self._text = text
        del self.rows[self._tail_row :]
        source = text[self._tail_start :]
        tokens = markdown_parser().parse(source)
        if any(token.level >= MAX_NESTING - 1 for token in tokens):
            self._tail_row = len(self.rows)
            self.rows += wrap(Content(source), self._width)
            return
        tree = SyntaxTreeNode(tokens)
        blocks = tree.children
        for block in blocks:
            if block is blocks[-1]:
                self._tail_row = len(self.rows)
            if self.rows:
                self.rows.append(Row())
            self.rows += self._typesetter.set(block, self._width)
        if blocks and blocks[-1].map is not None:
            lines = lines_of(source)[: blocks[-1].map[0]]
            self._tail_start += sum(map(len, lines))
        # Else it would live until the next full collection: that of a text of 93 KB takes 10 MB.
        for node in list(tree.walk()):
            node.parent = None


def _append_text(node: SyntaxTreeNode, start: int, text: list[str], spans: list[Span]) -> int:
    """Append a node's text and its style spans; returns its end."""
    first = len(text)
    match node.type:
        case "softbreak" | "hardbreak":
            # Models break lines on purpose, as in verses and addresses.
            text.append("\n")
        case "image":
            text.append(f"[{node.content}]({node.attrs.get('src', '')})")
        case _ if node.children:
            end = start
            for child in node.children:
                end = _append_text(child, end, text, spans)
        case _:
            text.append(node.content)
    shown = "".join(text[first:])
    end = start + len(shown)
    match node.type:
        case "em" | "strong" | "s":
            spans.append(Span(start, end, f".{node.type}"))
        case "code_inline":
            spans.append(Span(start, end, ".code"))
        case "link":
            href = str(node.attrs.get("href", ""))
            spans.append(Span(start, end, ".link"))
            spans.append(Span(start, end, Style(link=href)))
            if href.removeprefix("mailto:").removeprefix("http://") != shown != href:
                text.append(f" ({href})")
                end += len(text[-1])
    return end


def _is_open(node: SyntaxTreeNode) -> bool:
    """Whether the closing fence of a code block has not come yet."""
    if node.type != "fence" or node.map is None:
        return False
    start, end = node.map
    return end - start - len(lines_of(node.content)) < 2


def _align(cell: Content, width: int, style: str) -> Content:
    missing = width - cell.cell_length
    if "right" in style:
        return cell.pad_left(missing)
    if "center" in style:
        return cell.pad(missing // 2, missing - missing // 2)
    return cell.pad_right(missing)
