"""The tables of requirements in the README name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
README = (HERE.parents[2] / "examples" / "petitions" / "README.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", README[README.index("## Requirements") :], re.MULTILINE)


@cache
def names_in(module: str) -> set[str]:
    nodes = ast.walk(ast.parse((HERE / module).read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def test_every_row_names_its_proof_or_says_what_replaces_it() -> None:
    rows = [(name, proof) for name, proof in ROWS if name not in {"requirement", "---|---"}]
    assert len(rows) > 60
    for name, proof in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", proof)
        assert named or "replaces it" in proof, name
        for module, test in named:
            assert test in names_in(module), test
