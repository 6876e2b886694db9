"""The client is installed without the service."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = ("fastapi", "starlette", "uvicorn", "websockets", "pydantic_settings", "aiohttp")


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_it_needs_no_package_of_the_service() -> None:
    done = run(
        f"import sys\nsys.modules |= dict.fromkeys({ABSENT!r})\nfrom mainspring.client import *\nClient().close()"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_missing_extra_is_named() -> None:
    done = run("import sys\nsys.modules['httpx2'] = None\nimport mainspring.client")
    assert "MissingExtra: the client needs httpx2; install it with: pip install 'mainspring[client]'" in done.stderr


@pytest.mark.slow
def test_names_of_the_service_are_imported_at_their_first_use() -> None:
    done = run(
        "import sys, mainspring.service as s\nassert 'fastapi' not in sys.modules\ns.make_service\ns.Scope\ns.other"
    )
    assert "AttributeError: module 'mainspring.service' has no attribute 'other'" in done.stderr
