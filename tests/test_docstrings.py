"""Public functions of three arguments or more say what goes in, what comes out and what is refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("expert_residency", "traces", "hwmodels", "policies", "sim")
WRITTEN = (
    "expert_residency/",
    "traces/",
    "hwmodels/",
    "policies/",
    "sim/residency/",
    "sim/timed/",
    "sim/kernel/",
    "sim/live/",
    "sim/split/",
    "sim/validation/",
    "sim/testing/",
    "sim/report/",
    "sim/studies/",
)
"""Rooms in which every such function has its sections."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
SECTION = re.compile(r"^(Parameters|Returns|Yields|Raises)\n-+\n", re.MULTILINE)


@dataclass
class Documented:
    """A function or method, or a class whose docstring documents the arguments that make it."""

    place: str
    node: Function | ast.ClassDef
    owner: ast.ClassDef | None = None
    arguments: list[str] = field(default_factory=list)

    @property
    def sections(self) -> dict[str, str]:
        """Text of each section of the docstring."""
        parts = SECTION.split(ast.get_docstring(self.node) or "")
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    @property
    def parameters(self) -> list[str]:
        """Names that stand in the section Parameters."""
        heads = re.findall(r"^([\w*].*)$", self.sections.get("Parameters", ""), re.MULTILINE)
        return [name.strip().lstrip("*") for head in heads for name in head.split(":")[0].split(",")]


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if folder != "expert_residency" or len(relative.parts) == 2 or relative.parts[1] not in FOLDERS:
                yield str(relative), ast.parse(path.read_text(encoding="utf-8"))


def arguments(function: Function, owner: ast.ClassDef | None) -> list[str]:
    """Names of what a caller gives."""
    given = function.args
    names = [a.arg for a in [*given.posonlyargs, *given.args]]
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if owner is not None and not static:
        names = names[1:]
    rest = [a.arg for a in (given.vararg, given.kwarg) if a is not None]
    return [*names, *(a.arg for a in given.kwonlyargs), *rest]


def functions(place: str, body: list[ast.stmt], owner: ast.ClassDef | None = None) -> Iterator[Documented]:
    """Functions of a module and methods of its classes; those inside functions are nobody else's business."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(place, node.body, node)
        elif isinstance(node, Function) and "overload" not in {
            d.id for d in node.decorator_list if isinstance(d, ast.Name)
        }:
            yield Documented(place, node, owner, arguments(node, owner))


def classes(place: str, tree: ast.Module) -> Iterator[Documented]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [
                s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
            made = [s for s in node.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"]
            yield Documented(place, node, arguments=arguments(made[0], node) if made else fields)


TREES = dict(sources())
ALL = [found for place, tree in TREES.items() for found in functions(place, tree.body)]
CLASSES = [found for place, tree in TREES.items() for found in classes(place, tree)]
BASES = {node.name: node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
METHODS = {(found.owner.name, found.node.name): found for found in ALL if found.owner is not None}


def is_a_readers(found: Documented) -> bool:
    """Whether it is the `read` of a trace format without options of its own, which `base.Reader` documents."""
    reads = found.place.startswith("traces/readers/") and found.owner is None and found.node.name == "read"
    return reads and found.arguments == ["path", "model", "partial"]


def inherits_its_text(found: Documented) -> bool:
    """Whether a base class documents the same method with the same arguments."""
    if is_a_readers(found):
        return True
    todo = [*found.owner.bases] if found.owner else []
    while todo:
        name = ast.unparse(todo.pop()).rpartition(".")[2].partition("[")[0]
        above = METHODS.get((name, found.node.name))
        if above is not None and above.arguments == found.arguments and "Parameters" in above.sections:
            return True
        todo += BASES[name].bases if name in BASES else []
    return False


def raises(function: Function) -> bool:
    """Whether it refuses something itself; `NotImplementedError` is no refusal."""
    return any(
        isinstance(node, ast.Raise) and node.exc is not None and "NotImplemented" not in ast.unparse(node.exc)
        for node in ast.walk(function)
    )


def returns(function: Function) -> bool:
    return function.returns is not None and ast.unparse(function.returns) not in ("None", "NoReturn", "Never")


def lacking(found: Documented) -> list[str]:
    """Sections that ought to be there and are not."""
    wanted = {"Parameters": True, "Returns": returns(found.node), "Raises": raises(found.node)}
    there = set(found.sections) | ({"Returns"} if "Yields" in found.sections else set())
    return [section for section, needed in wanted.items() if needed and section not in there]


def name_of(found: Documented) -> str:
    owner = f"{found.owner.name}." if found.owner else ""
    return f"{found.place}: {owner}{found.node.name}"


def is_command(found: Documented) -> bool:
    """Whether its docstring is a command's help, in which every option documents itself (`test_cli`)."""
    return any(".command(" in ast.unparse(decorator) for decorator in found.node.decorator_list)


def public(found: Documented) -> bool:
    owner = found.owner.name if found.owner else ""
    return not found.node.name.startswith("_") and not owner.startswith("_")


def test_functions_of_three_arguments_say_what_they_take_give_and_refuse():
    asked = [
        f for f in ALL if f.place.startswith(WRITTEN) and public(f) and len(f.arguments) >= 3 and not is_command(f)
    ]
    lack = {name_of(f): lacking(f) for f in asked if not inherits_its_text(f) and lacking(f)}
    assert lack == {}


def called(node: Function | ast.ClassDef) -> bool:
    """Whether somebody else writes its arguments: a function, or a class with an `__init__` of its own."""
    return isinstance(node, Function) or any(isinstance(s, Function) and s.name == "__init__" for s in node.body)


def test_every_argument_is_documented_and_nothing_else():
    wrong = {}
    for found in [*ALL, *CLASSES]:
        if "Parameters" not in found.sections:
            continue
        left_out = set(found.arguments) - set(found.parameters) if called(found.node) else set()
        invented = set(found.parameters) - set(found.arguments)
        if invented or (left_out and found.place.startswith(WRITTEN)):
            wrong[name_of(found)] = sorted(invented | left_out)
    assert wrong == {}


def test_it_notices():
    doc = "X.\n\n    Parameters\n    ----------\n    a, x\n        Y.\n    "
    text = f'def f(a, b, c) -> int:\n    """{doc}"""\n    raise E\n'
    (found,) = functions("m", ast.parse(text).body)
    assert lacking(found) == ["Returns", "Raises"]
    assert set(found.parameters) ^ set(found.arguments) == {"b", "c", "x"}
    assert len(ALL) > 1000
