"""The rules of the house that a machine can keep (docs/architecture.md): who may import whom, how long things get."""

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("gateway", "policies", "loadgen")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in FILES}
TASKS = ("gateway/tasks.py", "loadgen/tasks.py")

FILE_LINES = 350
FUNCTION_LINES, MEDIAN_LINES, P90_LINES = 60, 8, 30
PARAMETERS = 5
NESTING = 3

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def functions() -> Iterator[tuple[str, Function]]:
    """Every function of the three packages with where it stands."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{path}:{node.lineno} {node.name}", node


def calls(names: set[str]) -> list[str]:
    """Where functions or methods of these names are called."""
    return [
        f"{path}:{node.lineno} {ast.unparse(node.func)}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names
    ]


def length(path: str, function: Function) -> int:
    """Lines from `def` to the end; of a command's function without its signature, which holds the options."""
    start = function.body[0] if "/__main__.py" in path else function
    return (function.end_lineno or start.lineno) - start.lineno + 1


def parameters(function: Function) -> int:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in given if argument.arg not in ("self", "cls")])


def nesting(statements: list[ast.stmt], depth: int = 0) -> int:
    """The deepest block inside block; `elif` is no deeper than its `if`, a function inside starts anew."""
    deepest = depth
    for statement in statements:
        if not isinstance(statement, BLOCKS):
            continue
        for inner in bodies(statement):
            is_elif = isinstance(statement, ast.If) and inner is statement.orelse and is_one_if(inner)
            deepest = max(deepest, nesting(inner, depth if is_elif else depth + 1))
    return deepest


def bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, ast.Match):
        yield from (case.body for case in statement.cases)
    for name in ("body", "orelse", "finalbody"):
        if inner := getattr(statement, name, []):
            yield inner
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def is_one_if(statements: list[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.If)


def test_the_rules_see_the_code() -> None:
    assert len(FILES) > 50
    assert sum(1 for _ in functions()) > 300


def test_imports_follow_the_contracts() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_is_too_long() -> None:
    long = {path.relative_to(ROOT).as_posix(): len(path.read_bytes().splitlines()) for path in FILES}
    assert {path: lines for path, lines in long.items() if lines > FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = {place: length(place, function) for place, function in functions()}
    assert {place: lines for place, lines in lengths.items() if lines > FUNCTION_LINES} == {}
    assert statistics.median(lengths.values()) <= MEDIAN_LINES
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= P90_LINES


def test_functions_have_few_parameters() -> None:
    # the parameters of a command are its options
    many = {place: parameters(function) for place, function in functions() if "/__main__.py" not in place}
    assert {place: count for place, count in many.items() if count > PARAMETERS} == {}


def test_blocks_are_not_nested_deep() -> None:
    deep = {place: nesting(function.body) for place, function in functions()}
    assert {place: depth for place, depth in deep.items() if depth > NESTING} == {}


def test_nothing_is_checked_with_assert() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert found == [], "python -O removes them: raise an error"


def test_tasks_are_started_in_one_place() -> None:
    started = calls({"create_task", "ensure_future"})
    assert [place for place in started if not place.startswith(TASKS)] == []
    assert len([place for place in started if place.startswith(TASKS)]) == 2


def test_policies_decide_the_same_way_every_time() -> None:
    unsteady = [place for place in calls({"hash", "set", "frozenset"}) if place.startswith("policies/")]
    assert [place for place in unsteady if place.endswith(" hash")] == [], "hash() of text differs per process"
    iterated = [
        f"{path}:{loop.iter.lineno}"
        for path, tree in TREES.items()
        if path.startswith("policies/")
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.comprehension)
        and (isinstance(loop.iter, ast.Set | ast.SetComp) or ast.unparse(loop.iter).startswith(("set(", "frozenset(")))
    ]
    assert iterated == [], "the order of a set differs per process"
    shared = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        if path.startswith("policies/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and any(name.name == "random" for name in node.names)
    ]
    assert shared == [], "from random import Random: the core's own, seeded"


@pytest.mark.parametrize(
    ("code", "depth"),
    [
        ("pass", 0),
        ("if a: pass\nelif b: pass\nelse: pass", 1),
        ("for a in b:\n if c:\n  pass\n elif d:\n  while e: pass", 3),
        ("try:\n pass\nexcept E:\n with f: pass", 2),
        ("match a:\n case 1:\n  if b: pass", 2),
        ("if a: pass\nelse:\n if b: pass\n pass", 2),
    ],
)
def test_nesting_is_counted_as_people_count_it(code: str, depth: int) -> None:
    assert nesting(ast.parse(code).body) == depth
