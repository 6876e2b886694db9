"""docs/service.md is complete: it lists every code, setting and route."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring import Mainspring
from mainspring.service import ServiceSettings
from mainspring.service.problems import KINDS
from tests.service.serving import api_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "service.md").read_text("utf-8")
PAGES = "".join(page.read_text("utf-8") for page in sorted(DOCS.glob("service*.md")))


def test_every_code_is_listed_with_its_status_and_meaning() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\d{3}) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert listed == [(code, str(kind.status), kind.title) for code, kind in KINDS.items()]


def test_every_setting_is_listed() -> None:
    missing = [name for name in ServiceSettings.model_fields if f"MAINSPRING_{name.upper()}`" not in PAGES]
    assert missing == []


def test_every_path_is_mentioned() -> None:
    app = Mainspring("memory://")
    paths = api_of(app).openapi()["paths"]
    ends = {path: re.sub(r"\{[^}]+\}", "", path).rpartition("/")[2].rpartition(":")[2] for path in paths}
    missing = [path for path, end in ends.items() if end and end not in PAGES]
    assert missing == []
