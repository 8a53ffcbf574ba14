"""The layout shows the architecture: imports point one way, and importing does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import latemask

ROOT = Path(latemask.__file__).parent

# Each room may import from the ones named here (and from itself). Everything may import the ground floor.
GROUND = {"ground", "__init__"}
MAY_IMPORT = {
    "recipe": set(),
    "text": set(),
    "masking": {"recipe", "text"},
    "families": {"recipe", "text"},
    "objectives": {"families", "masking", "recipe", "text"},
    "model": {"families", "objectives", "recipe", "run_folder", "text"},
    "budget": {"objectives", "recipe"},
    "run_folder": {"recipe"},
    "starts": {"recipe", "text"},
    "references": {"budget", "model", "recipe", "run_folder", "text"},
    "card": {"recipe", "run_folder"},
    "exporting": {"card", "model", "recipe", "run_folder", "text"},
    "filling": {"model", "run_folder", "text"},
    "inspecting": {"masking", "recipe", "text"},
    "training": {
        "budget",
        "exporting",
        "masking",
        "model",
        "recipe",
        "references",
        "reporting",
        "run_folder",
        "starts",
        "text",
    },
    "reporting": {"budget", "evaluation", "recipe", "run_folder"},
    "planning": {"budget", "masking", "model", "recipe", "references", "starts", "text", "training"},
    "evaluation": {"exporting", "model", "recipe", "run_folder", "text"},
    "demonstrating": {"evaluation", "filling", "recipe", "reporting", "run_folder", "text", "training"},
    "sweeping": {"budget", "masking", "model", "recipe", "references", "reporting", "run_folder", "text", "training"},
    "command": {"recipe"},
    "cli": {"command"},
    "__main__": {"cli"},
}


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("latemask.")}
    return found


def test_imports_point_one_way():
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room == "ground":
            assert rooms_imported(path) <= {"ground"}, path
        if room in GROUND:
            continue
        assert room in MAY_IMPORT, f"{room} is new: say what it may import"
        assert rooms_imported(path) - GROUND - {room} <= MAY_IMPORT[room], path


def test_budget_arithmetic_needs_no_torch():
    code = "import sys, latemask; latemask.plan('mini-base', hours=1, device='t4'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_promised_names_are_there():
    from latemask import (
        EarlyMaskForPreTraining,
        LateMaskForPreTraining,
        export,
        prepare,
        pretrain,
    )

    assert all(map(callable, (LateMaskForPreTraining, EarlyMaskForPreTraining, prepare, pretrain, export)))
    assert all(hasattr(latemask, name) for name in latemask.__all__)


def test_mypy_finds_nothing():
    """As a test, so that it takes a core while others wait."""
    found = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=Path(__file__).parent.parent, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout
