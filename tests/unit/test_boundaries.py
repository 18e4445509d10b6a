"""The house's floors: a module imports from its own room and from the floors below, no other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

FLOORS = [
    {"__main__"},
    {"cli"},
    {"serve"},
    {"checking", "calibrating"},
    {"session"},
    {"batches", "streams"},
    {"running"},
    {"completion", "requests", "models"},
    {"loading", "hub", "demo"},
    {"measuring", "planning"},
    {"engine"},
    {"draft", "verify", "schedule", "text", "trace"},
    {"runtime"},
    {"ffi"},
    {"_native"},
    {"options"},
    {"constraint", "endpoints", "processors"},
    {"errors", "turnstile", "_version"},
]
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
# the rooms of the house that use those beside it
USES = {"cli": {"convert", "bench"}, "models": {"convert"}}
# rooms beside the house, in folders of their own, and what they may import
BESIDE = {
    "convert": {"hub", "runtime", "options", "errors", "_version"},
    "bench": {
        *(
            "checking",
            "calibrating",
            "session",
            "completion",
            "loading",
            "hub",
            "models",
            "demo",
            "engine",
            "draft",
        ),
        *("trace", "verify", "schedule", "text", "runtime", "options", "errors", "_version"),
        *("ffi", "convert", "processors"),
    },
}


def modules(root: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Every module below the package, as (room, ..., file), with its file."""
    for folder, room in ((root / "llamaspec", ()), *((root / name, (name,)) for name in BESIDE)):
        for path in sorted(folder.rglob("*.py")):
            parts = (*room, *path.relative_to(folder).with_suffix("").parts)
            if room or parts[0] not in BESIDE:
                yield parts, path


def imported(parts: tuple[str, ...], source: str) -> set[str]:
    """The rooms that a module imports, at its top or anywhere inside."""
    package, found = ("llamaspec", *parts[:-1]), set()
    for node in ast.walk(ast.parse(source)):
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            start = [*base, *(node.module.split(".") if node.module else ())]
            names = [[*start, alias.name] for alias in node.names]
        found |= {name[1] for name in names if name[0] == "llamaspec" and len(name) > 1}
    return found & (LEVEL.keys() | BESIDE.keys())


def crossing(room: str, other: str) -> bool:
    """Whether a room may not import another."""
    if other == room or (room, other) == ("ffi", "_native") or other in USES.get(room, ()):
        return False
    if room in BESIDE or other in BESIDE or other == "_native":
        return other not in BESIDE.get(room, set())
    return LEVEL[room] >= LEVEL[other]


def test_every_room_has_a_floor() -> None:
    rooms = {parts[0] for parts, _ in modules(ROOT)} - {"__init__"}
    assert rooms <= LEVEL.keys() | BESIDE.keys()
    assert {"cli", "engine", "runtime", "convert", "bench"} <= rooms


def test_imports_point_down_only() -> None:
    bad = [
        f"{'.'.join(parts)} imports {other}"
        for parts, path in modules(ROOT)
        if parts != ("__init__",)
        for other in imported(parts, path.read_text())
        if crossing(parts[0], other)
    ]
    assert bad == []


@pytest.mark.parametrize(
    ("parts", "source", "bad"),
    [
        (("runtime", "x"), "from llamaspec.session import load", True),
        (("runtime", "x"), "def f():\n    from ..cli import run", True),
        (("runtime", "x"), "import llamaspec.engine.loop as loop", True),
        (("runtime", "x"), "from llamaspec import _native", True),
        (("draft", "x"), "from llamaspec import text", True),
        (("convert", "x"), "from llamaspec.session import load", True),
        (("session",), "from llamaspec.convert import write", True),
        (("models", "x"), "from llamaspec.bench import run", True),
        (("convert", "x"), "from llamaspec.models import find_pair", True),
        (("models", "x"), "from llamaspec.convert import write", False),
        (("runtime", "x"), "from .y import z\nfrom llamaspec.errors import OptionError", False),
        (("ffi",), "from llamaspec import _native", False),
        (("cli", "x"), "from llamaspec import __version__\nimport numpy.runtime", False),
        (("cli", "x"), "from llamaspec.convert import write", False),
    ],
)
def test_crossings_are_seen(parts: tuple[str, ...], source: str, bad: bool) -> None:
    assert any(crossing(parts[0], other) for other in imported(parts, source)) == bad


def test_the_top_imports_nothing_heavy() -> None:
    body = ast.parse((ROOT / "llamaspec" / "__init__.py").read_text()).body
    direct = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {node.module if isinstance(node, ast.ImportFrom) else "import" for node in direct}
    assert names <= {"typing", "llamaspec._version", "llamaspec.errors"}
