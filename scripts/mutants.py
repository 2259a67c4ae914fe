"""Mutants of a Python file: cosmic-ray's operators, without those that say nothing.

Of the operators that replace one operator by another, those are kept that programmers mix up
(`+` and `-`, `<` and `<=`, `<` and `>=`), not all pairs. Left alone: annotations, arguments of
decorators, and what only says how a function is compiled.
"""

import ast
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import cosmic_ray.plugins
from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code

PAIRS = (
    *("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Div_Mul", "Mod_FloorDiv", "Pow_Mul"),
    *("LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr", "BitXor_BitOr"),
    *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt"),
    *("Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
)
WHOLE = (
    *("AddNot", "Break", "Continue", "TrueWith", "FalseWith", "AndWith", "OrWith", "Exception"),
    *("NumberReplacer", "ZeroIterationForLoop", "RemoveDecorator", "_Delete_", "USub_UAdd"),
)
OPERATORS = tuple(
    name
    for name in cosmic_ray.plugins.operator_names()
    if name.partition("Operator_")[2] in PAIRS or any(word in name for word in WHOLE)
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a file. first and last: the lines of the statement, or of its head."""

    path: str
    operator: str
    occurrence: int
    line: int
    column: int
    first: int
    last: int

    def source(self, original: str) -> str:
        """Return the file with the change."""
        operator = cosmic_ray.plugins.get_operator(self.operator)()
        changed = mutate_code(original, operator, self.occurrence)
        assert changed is not None
        return str(changed)


def shown(before: str, after: str) -> tuple[str, str]:
    """Return the lines that a change of a file changes, before and after, on one line each."""
    old, new = before.splitlines(), after.splitlines()
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    while old and new and old[-1] == new[-1] and min(len(old), len(new)) > start + 1:
        del old[-1], new[-1]
    joined = [" ".join(line.strip() for line in lines[start:]) for lines in (old, new)]
    return joined[0], joined[1]


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield all mutants of a file, in the order of operators and places."""
    tree = get_ast(source)
    skipped = list(_skipped(ast.parse(source)))
    spans = sorted(_spans(ast.parse(source)), key=lambda span: span[1] - span[0])
    for name in OPERATORS:
        places = _Places(name)
        places.walk(tree)
        for occurrence, (line, column) in enumerate(places.found):
            if any(start <= (line, column) < end for start, end in skipped):
                continue
            first, last = next(s for s in spans if s[0] <= line <= s[1])
            yield Mutant(path, name, occurrence, line, column, first, last)


class _Places(Visitor):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.operator = cosmic_ray.plugins.get_operator(name)()
        self.found: list[tuple[int, int]] = []

    def visit(self, node: object) -> object:
        self.found += [start for start, _ in self.operator.mutation_positions(node)]
        return node


def _skipped(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list]
        elif isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        for part in parts:
            if part is not None:
                start = part.lineno, part.col_offset - 1  # with the @ of a decorator
                yield start, (part.end_lineno or 0, part.end_col_offset or 0)


def _spans(tree: ast.Module) -> Iterator[tuple[int, int]]:
    yield 1, 10**9
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = (body[0].lineno - 1) if body else (node.end_lineno or node.lineno)
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            yield first, max(first, last)


Code = types.CodeType


def changed_functions(old: Code, new: Code) -> dict[str, list[Code]] | None:
    """Return the new codes of functions that differ, by qualified name, in order.

    None if anything else differs: what a module or a class does when it is made.
    """
    found: dict[str, list[Code]] = {}
    return found if _compare(old, new, found) else None


def _compare(old: Code, new: Code, found: dict[str, list[Code]]) -> bool:
    is_function = bool(old.co_flags & 0x01)  # CO_OPTIMIZED: neither a module nor a class
    inner_old, inner_new = _inner(old), _inner(new)
    same = len(inner_old) == len(inner_new) and _own(old) == _own(new)
    if not same and not is_function:
        return False
    if is_function and old != new:
        if old.co_freevars != new.co_freevars:
            return False
        found.setdefault(new.co_qualname, []).append(new)
    return all(_compare(a, b, found) for a, b in zip(inner_old, inner_new, strict=False))


def _own(code: Code) -> tuple[object, ...]:
    constants = [(type(c), c) for c in code.co_consts if not isinstance(c, Code)]
    return code.co_code, code.co_names, code.co_varnames, repr(constants)


def _inner(code: Code) -> list[Code]:
    return [c for c in code.co_consts if isinstance(c, Code)]


def functions_of(objects: Iterable[object], folder: str) -> dict[tuple[str, str], list[object]]:
    """Return functions by their file's name and qualified name, as far as files lie in a folder."""
    found: dict[tuple[str, str], list[object]] = {}
    for thing in objects:
        if isinstance(thing, types.FunctionType) and thing.__code__.co_filename.startswith(folder):
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_qualname), []).append(thing)
    return found
