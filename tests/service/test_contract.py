"""The API does what its OpenAPI document says: tried by schemathesis, operation by operation and in sequences."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.service.serving import serving

PHASES = "examples,coverage,fuzzing,stateful"
NOT_CHECKED = (
    "ignored_auth",  # tokens are optional on loopback; test_security.py has the table of scopes
    "unsupported_method",  # ids may contain slashes and colons: GET /v1/breakers/x:close asks for the breaker `x:close`
    "positive_data_acceptance",  # a task or a cursor that is not there is refused, though the document allows its form
)


@pytest.mark.slow
async def test_the_api_keeps_its_promises(app: Mainspring, tmp_path: Path) -> None:
    """No 5xx, no answer that the document does not describe, nothing accepted that it forbids."""
    await app.published.publish(app.tasks.values(), "w1")
    async with serving(app, max_wait=0.01) as client:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", f"{client.url}/v1/openapi.json", "--phases", PHASES,
            "--max-examples", "10", "--seed", "1", "--generation-deterministic",
            "--exclude-checks", ",".join(NOT_CHECKED), "--exclude-path", "/v1/halt",
            "--exclude-path", "/v1/events",
            "--no-color",
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        said, _ = await program.communicate()
    assert program.returncode == 0, said.decode(errors="replace")[-20_000:]
