"""Which small changes of a module are worth a try, and what each is called.

A mutant is one change of the source: another comparison, operator, constant or default, or a
statement that is left out. Left alone is what no test should hold: docstrings, annotations, the
texts of errors and of the log, and the constants of a module, which are choices.
"""

import ast
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
}
TOLD = {"info", "warning", "error", "debug", "exception", "emit", "print", "progress"}
"""Calls that only tell people something."""
LOOKS = {"indent", "description", "title", "stacklevel", "max_workers", "thread_name_prefix"}
"""Arguments that change no result."""
PATHS = {"path", "folder", "root", "output", "temporary", "parent", "checkpoints"}
"""Names before a `/` that joins paths."""
LONGEST = 120
"""Characters of a statement that stand in its mutant's name."""
SMALLEST_SHARE = 4
"""Mutants of a room however small it is."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: path under the package, e.g. "training/loop.py".
        function: the outermost function that holds it, as "Class.method"; "" outside of any.
        text: its line with the change marked, e.g. `if size ⟦< → <=⟧ 1:`. The three name it,
            also after edits elsewhere.
        kind: what is changed.
        line: in the source, from 1.
        begin: the first byte that is replaced, in the whole source.
        end: behind the last.
        new: in their place.
    """

    module: str
    function: str
    text: str
    kind: str
    line: int
    begin: int
    end: int
    new: str

    @property
    def name(self) -> tuple[str, str, str]:
        return self.module, self.function, self.text

    @property
    def room(self) -> str:
        return Path(self.module).parent.as_posix()

    def apply(self, source: bytes) -> bytes:
        return source[: self.begin] + self.new.encode() + source[self.end :]


def find(source: bytes, module: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    finder = _Finder(source, module)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda mutant: (mutant.begin, mutant.end))


def pick(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many, spread over rooms by their size and over kinds, in an order that a hash gives.

    An edit in one function then changes the choice of no other.
    """
    rooms: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(mutants, key=lambda mutant: _rank(mutant, seed)):
        rooms[mutant.room].append(mutant)
    total = sum(map(len, rooms.values()))
    kept = {
        room: _of_each_kind(found)[: max(SMALLEST_SHARE, round(count * len(found) / total))]
        for room, found in rooms.items()
    }
    picked = sorted(chain(*kept.values()), key=lambda mutant: _rank(mutant, seed))
    return picked[:count]


def _rank(mutant: Mutant, seed: int) -> str:
    return hashlib.sha256(repr((seed, mutant.name)).encode()).hexdigest()


def _of_each_kind(mutants: list[Mutant]) -> list[Mutant]:
    """The first of each kind, the second of each, and so on."""
    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        kinds[mutant.kind].append(mutant)
    rounds = zip_longest(*(kinds[kind] for kind in sorted(kinds)))
    return [mutant for each in rounds for mutant in each if mutant is not None]


class _Finder(ast.NodeVisitor):
    """Walks a module and collects what may be changed."""

    def __init__(self, source: bytes, module: str) -> None:
        self.found: list[Mutant] = []
        self._source = source
        self._module = module
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
        self._classes: list[str] = []
        self._function = ""

    # ---- where we are ------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append(node.name)
        self._visit_all(_without_docstring(node.body))
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self._function
        self._function = before or ".".join([*self._classes, node.name])
        defaults = [*node.args.defaults, *(it for it in node.args.kw_defaults if it is not None)]
        for default in defaults:
            self._constant(default, "default")
        self._visit_all(_without_docstring(node.body))
        self._function = before

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) or "__name__" not in ast.dump(node.test):
            self.generic_visit(node)

    # ---- what is left alone ------------------------------------------------------------------

    def visit_Assert(self, node: ast.Assert) -> None:
        """Our own invariants."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and self._is_inside():
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_told(node):
            return
        self.visit(node.func)
        if node.args and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            self._key(node.args[0])
        self._visit_all(node.args)
        left_alone = LOOKS | ({"strict"} if _is_zip(node) else set())
        self._visit_all(word.value for word in node.keywords if word.arg not in left_alone)

    # ---- what is changed ---------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        if isinstance(node.value, ast.Call) and not _is_told(node.value):
            self._drop(node)
        self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._drop(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not self._is_inside():
            return
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            self._drop(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._drop(node)
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, node.comparators, strict=False):
            self._between(left, right, *COMPARISONS[type(operator)], "comparison")
        for side in sides:
            self._key(side)
        self._visit_all(sides)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in ARITHMETIC and not _is_easy(node):
            self._between(node.left, node.right, *ARITHMETIC[type(node.op)], "arithmetic")
        self._visit_all([node.left, node.right])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        names = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, *names, "boolean")
        self._visit_all(node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            begin, _ = self._place(node)
            self._add(node, "boolean", begin, begin + len("not "), "")
        self.visit(node.operand)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._key(node.slice)
        self._visit_all([node.value, node.slice])

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is not None:
                self._key(key)
        self._visit_all(node.values)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._constant(node, "constant")

    # ---- how ---------------------------------------------------------------------------------

    def _is_inside(self) -> bool:
        return bool(self._classes or self._function)

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _constant(self, node: ast.AST, kind: str) -> None:
        if not isinstance(node, ast.Constant) or not self._is_inside():
            return
        value = node.value
        if isinstance(value, bool):
            self._add(node, kind, *self._place(node), str(not value))
        elif isinstance(value, int):
            self._add(node, kind, *self._place(node), str(value + 1))
        elif isinstance(value, float):
            self._add(node, kind, *self._place(node), str(2 * value or 1.0))

    def _key(self, node: ast.AST) -> None:
        """A word that is compared or looked up."""
        word = node.value if isinstance(node, ast.Constant) else None
        if isinstance(word, str) and re.fullmatch(r"\w+", word) and self._is_inside():
            self._add(node, "word", *self._place(node), f'"{word}_x"')

    def _drop(self, node: ast.stmt) -> None:
        self._add(node, "statement", *self._place(node), "pass")

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str, kind: str) -> None:
        """The operator stands between its sides, perhaps beside brackets."""
        begin, end = self._place(left)[1], self._place(right)[0]
        words = r"\s+".join(map(re.escape, old.split()))
        match = re.search(words.encode(), self._source[begin:end])
        if match is not None:
            self._add(left, kind, begin + match.start(), begin + match.end(), new)

    def _place(self, node: ast.AST) -> tuple[int, int]:
        """Bytes [begin, end) of a node."""
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = self._starts[node.lineno - 1] + node.col_offset
        return begin, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _add(self, node: ast.AST, kind: str, begin: int, end: int, new: str) -> None:
        line = self._source.count(b"\n", 0, begin) + 1
        first = self._starts[line - 1]
        behind = self._source.find(b"\n", end)
        before, after = self._source[first:begin], self._source[end : behind if behind > 0 else end]
        old = _short(self._source[begin:end].decode())
        text = f"{before.decode().lstrip()}⟦{old} → {new}⟧{after.decode().rstrip()}"
        self.found.append(
            Mutant(self._module, self._function, _short(text), kind, line, begin, end, new)
        )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _without_docstring(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    return (it for it in body if not (isinstance(it, ast.Expr) and _is_text(it.value)))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_easy(node: ast.BinOp) -> bool:
    """Whether the sides are texts or a path: any other operator would be a TypeError."""
    left = node.left
    while isinstance(left, ast.BinOp):
        left = left.left
    name = left.attr if isinstance(left, ast.Attribute) else getattr(left, "id", "")
    is_path = isinstance(node.op, ast.Div) and name in PATHS
    return is_path or _is_text(node.left) or _is_text(node.right)


def _is_zip(node: ast.Call) -> bool:
    """Its `strict` asserts our own invariant."""
    return isinstance(node.func, ast.Name) and node.func.id == "zip"


def _is_told(node: ast.Call) -> bool:
    """Whether a call only tells people something, or makes an error."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in TOLD or name.endswith(("Error", "Exit"))
