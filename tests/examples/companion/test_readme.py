"""Each row of the README's tables of requirements names tests that exist, or says what replaces it."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
README = (HERE.parents[2] / "examples" / "companion" / "README.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+) \|$", README[README.index("## Where each requirement is") :], re.MULTILINE)


def test_every_row_names_its_proof_or_says_what_replaces_it() -> None:
    rows = [(name, proof) for name, proof in ROWS if name not in {"requirement", "---|---"}]
    assert len(rows) > 40
    for name, proof in rows:
        named = re.findall(r"`(test_\w+)\.(test_\w+)`", proof)
        assert named or proof.startswith("Replaced by "), name
        for module, test in named:
            code = (HERE / f"{module}.py").read_text("utf-8")
            assert re.search(rf"^(async )?def {test}\(", code, re.MULTILINE), test
