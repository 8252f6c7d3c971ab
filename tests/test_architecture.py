"""Imports point one way, and constructs that hide errors or types stay out of the packages."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from sys import stdlib_module_names

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("verdict_jax", "svrl_jax")
TOP = ("scripts", "notebooks", "tests")

LAYERS = ("verdict_jax.vlm", "verdict_jax", "svrl_jax")
"""Lowest first: a module imports its own layer and those before it."""


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        found = sorted([*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.ipynb")])
        yield from (path for path in found if ".ipynb_checkpoints" not in path.parts)


def parse(path: Path) -> ast.Module:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [c["source"] for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        code = "\n".join(cell if isinstance(cell, str) else "".join(cell) for cell in cells)
        text = re.sub(r"^\s*[%!].*$", "", code, flags=re.MULTILINE)
    return ast.parse(text, filename=str(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(tree: ast.AST, module: str, is_package: bool) -> set[str]:
    """Absolute names of all that a module imports, at any depth, for type checking or not.

    `from a import b` counts as both `a` and `a.b`: whether b is a module cannot be seen.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names.update(alias.name for alias in node.names)
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    parents = module.split(".")
                    up = node.level - is_package
                    base = ".".join([*parents[: len(parents) - up], *filter(None, [base])])
                names.add(base)
                names.update(f"{base}.{alias.name}" for alias in node.names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                names.add(name if not name.startswith(".") else module.split(".")[0] + name)
    return names


def imports_of(path: Path) -> set[str]:
    return imported_modules(parse(path), module_name(path), path.stem == "__init__")


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer(module: str) -> int | None:
    """Position in LAYERS; None for a module that is not of the packages."""
    return next((i for i, package in enumerate(LAYERS) if within(module, package)), None)


def layer_violations(module: str, imports: set[str]) -> list[str]:
    own = layer(module)
    if own is None:
        return []
    found = []
    for name in sorted(imports):
        target = layer(name)
        above = target is not None and target > own
        if above or any(within(name, top) for top in TOP):
            found.append(f"{module} imports {name}")
    return found


def test_imports_point_one_way() -> None:
    found = [v for p in sources(*PACKAGES) for v in layer_violations(module_name(p), imports_of(p))]
    assert not found, "\n".join(found)


def test_torch_is_a_test_oracle_only() -> None:
    allowed = (ROOT / "tests", ROOT / "scripts" / "bench", ROOT / "scripts" / "export_goldens.py")
    found = [
        str(path.relative_to(ROOT))
        for path in sources(*PACKAGES, *TOP)
        if not any(path.is_relative_to(place) for place in allowed)
        and any(within(name, "torch") or within(name, "torchvision") for name in imports_of(path))
    ]
    assert not found


OPTIONAL = {"svrl_jax.search.dynamodb_store": "dynamodb"}
"""Modules that an extra is needed for: no other module of the packages imports them."""


def test_packages_import_declared_dependencies_only() -> None:
    """What comes with an extra only, or by way of another package, may be missing for a user."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = packages_distributions()
    found = []
    for path in sources(*PACKAGES):
        extra = OPTIONAL.get(module_name(path))
        extras = project["optional-dependencies"][extra] if extra else []
        declared = {
            canonical(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
            for requirement in [*project["dependencies"], *extras]
        }
        found += [
            f"{module_name(path)} imports {name}" for name in sorted(imports_of(path) & {*OPTIONAL})
        ]
        for top in sorted({name.split(".")[0] for name in imports_of(path)}):
            distributions = {canonical(name) for name in installed.get(top, [])}
            if top not in {*stdlib_module_names, *PACKAGES} and not distributions & declared:
                found.append(f"{module_name(path)} imports {top}")
    assert not found, "\n".join(found)


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_modules_are_named_after_what_they_hold() -> None:
    names = {
        part.removesuffix(".py")
        for path in sources(*PACKAGES, *TOP)
        for part in path.relative_to(ROOT).parts
    }
    assert not {name for name in names if is_nondescript(name)}


def is_nondescript(name: str) -> bool:
    return re.search(r"(?:^|_)(?:utils?|common|helpers?|misc)$", name) is not None


def caught(handler: ast.ExceptHandler) -> set[str]:
    match handler.type:
        case None:
            return {"everything"}
        case ast.Tuple(elts=types):
            return {ast.unparse(t).removeprefix("builtins.") for t in types}
        case kind:
            return {ast.unparse(kind).removeprefix("builtins.")}


def annotation_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and source of every subscript, those inside quoted annotations included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            yield node.lineno, ast.unparse(node)
        quoted = None
        if isinstance(node, ast.arg | ast.AnnAssign):
            quoted = node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            quoted = node.returns
        if isinstance(quoted, ast.Constant) and isinstance(quoted.value, str):
            yield quoted.lineno, quoted.value


def hedges(tree: ast.AST) -> list[str]:
    """Constructs that swallow an error or a type, as 'line: what'."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.ExceptHandler():
                # Catching everything is for cleaning up on the way out, nothing else.
                raises = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
                broad = {"everything", "Exception"} | (set() if raises else {"BaseException"})
                if caught(node) & broad:
                    found.append((node.lineno, "except catches " + ", ".join(caught(node))))
            case ast.Call(func=ast.Name(id="getattr"), args=[_, _, _]):
                found.append((node.lineno, "getattr with a default"))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if node.args.kwarg is not None:
                    found.append((node.lineno, f"**{node.args.kwarg.arg}"))
    for line, text in annotation_texts(tree):
        if re.match(r"(?:\w+\.)?(?:[dD]ict|(?:Mutable)?Mapping)\[str, (?:\w+\.)?Any\]", text):
            found.append((line, text))
    return [f"{line}: {what}" for line, what in found]


def test_packages_hide_neither_errors_nor_types() -> None:
    found = [f"{module_name(p)}:{hedge}" for p in sources(*PACKAGES) for hedge in hedges(parse(p))]
    assert not found, "\n".join(found)


# The rules above are only as good as what they find.


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("verdict_jax.vlm.rope", "import verdict_jax.rules"),
        ("verdict_jax.vlm.rope", "import verdict_jax"),
        ("verdict_jax.vlm.rope", "from verdict_jax import protocols"),
        ("verdict_jax.vlm.rope", "from .. import rules"),
        ("verdict_jax.vlm.rope", "from ..prompts import STEP"),
        ("verdict_jax.vlm.rope", "def f():\n    from svrl_jax import rewards"),
        ("verdict_jax.vlm.rope", "if TYPE_CHECKING:\n    from verdict_jax.rules import Verdict"),
        ("verdict_jax.vlm.rope", "importlib.import_module('verdict_jax.rules')"),
        ("verdict_jax.rules", "import svrl_jax.rewards"),
        ("verdict_jax.rules", "import tests.oracles"),
        ("svrl_jax.rewards", "from scripts.bench import timing"),
    ],
)
def test_an_import_that_points_up_is_found(module: str, code: str) -> None:
    assert layer_violations(module, imported_modules(ast.parse(code), module, False))


@pytest.mark.parametrize(
    ("module", "code", "is_package"),
    [
        ("verdict_jax.vlm.rope", "from .config import TextConfig\nimport jax", False),
        ("verdict_jax.vlm.rope", "from verdict_jax.vlm.config import TextConfig", False),
        ("verdict_jax.vlm", "from . import config\nfrom .config import TextConfig", True),
        ("verdict_jax.judges", "from .vlm import cache\nfrom verdict_jax import rules", False),
        ("verdict_jax", "from .rules import verdict\nimport_module('.vlm')", True),
        ("svrl_jax.oracle", "from verdict_jax.vlm import cache\nimport verdict_jax", False),
        ("scripts.pretrain", "import svrl_jax, verdict_jax.vlm", False),
        ("verdict_jax.rules", "import testsuite_of_another_name", False),
    ],
)
def test_an_import_that_points_down_is_not(module: str, code: str, is_package: bool) -> None:
    assert not layer_violations(module, imported_modules(ast.parse(code), module, is_package))


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    f()\nexcept:\n    pass",
        "try:\n    f()\nexcept:\n    raise",
        "try:\n    f()\nexcept Exception as e:\n    log(e)",
        "try:\n    f()\nexcept (ValueError, Exception):\n    pass",
        "try:\n    f()\nexcept BaseException:\n    pass",
        "x = getattr(config, 'eps', 1e-6)",
        "def f(**kwargs): ...",
        "def f(a, *, b, **options: int): ...",
        "f = lambda **kw: kw",
        "def f(a: dict[str, Any]): ...",
        "def f() -> 'dict[str, Any]': ...",
        "x: typing.Mapping[str, typing.Any] = {}",
        "def f(a: list[dict[str, Any]]): ...",
    ],
)
def test_a_hedge_is_found(code: str) -> None:
    assert hedges(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    f()\nexcept (ValueError, OSError):\n    pass",
        "try:\n    f()\nexcept BaseException:\n    clean_up()\n    raise",
        "getattr(module, name)",
        "f(**settings)",
        "def f(a: dict[str, int], *rest): ...",
        "def f(a: Float[Array, 'n m']): ...",
    ],
)
def test_what_is_no_hedge_is_not(code: str) -> None:
    assert not hedges(ast.parse(code))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("utils", True),
        ("image_utils", True),
        ("helper", True),
        ("_common", True),
        ("misc", True),
        ("equilibrium", False),
        ("common_denominator", False),
        ("reutils", False),
    ],
)
def test_nondescript_names(name: str, expected: bool) -> None:
    assert is_nondescript(name) is expected
