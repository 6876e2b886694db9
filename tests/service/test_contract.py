"""The API does what its OpenAPI document says: tried by schemathesis, operation by operation and in sequences."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mainspring import Mainspring
from tests.service.serving import serving
from tests.service.test_security import token_of

HOOKS = {"SCHEMATHESIS_HOOKS": "tests.service.schemathesis_hooks", "PYTHONPATH": str(Path(__file__).parents[2])}
PHASES = "examples,coverage,fuzzing,stateful"
STREAMS = ("--exclude-path", "/v1/events", "--exclude-path", "/v1/public/events")  # they do not end by themselves
HALT = ("--exclude-path", "/v1/halt")  # a halt that rejects new jobs would keep all other operations from being tried
NOT_CHECKED = (
    "unsupported_method",  # ids may contain slashes and colons: GET /v1/breakers/x:close asks for the breaker `x:close`
    "positive_data_acceptance",  # a task or a cursor that is not there is refused, though the document allows its form
)
WITHOUT_TOKENS = (*NOT_CHECKED, "ignored_auth")  # tokens are optional on loopback; the run with tokens checks it


async def schemathesis(url: str, folder: Path, *options: str, skip: Sequence[str] = NOT_CHECKED) -> str:
    """Run it, and return what it says. Fail if it has found anything."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "run", f"{url}/v1/openapi.json", "--seed", "1",
        "--generation-deterministic", "--exclude-checks", ",".join(skip), "--no-color", *STREAMS, *options,
        cwd=folder, env=os.environ | HOOKS, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await program.communicate()
    text = said.decode(errors="replace")
    assert program.returncode == 0, text[-20_000:]
    return text


@pytest.mark.slow
async def test_the_api_keeps_its_promises(app: Mainspring, tmp_path: Path) -> None:
    """No 5xx, no answer that the document does not describe, nothing accepted that it forbids."""
    await app.published.publish(app.tasks.values(), "w1")
    async with serving(app, max_wait=0.01) as client:
        options = ("--phases", PHASES, "--max-examples", "10", *HALT)
        said = await schemathesis(client.url, tmp_path, *options, skip=WITHOUT_TOKENS)
    scenarios = re.search(r"Stateful.*?Scenarios:\s+(\d+)", said, re.DOTALL)
    assert scenarios is not None, said[-5_000:]
    assert int(scenarios[1]) > 0


@pytest.mark.slow
async def test_a_token_is_needed_where_the_document_says_so(app: Mainspring, tmp_path: Path) -> None:
    """With tokens: an operation that ignores them is found, and so is an answer that only their holders get."""
    token = await token_of(app, "admin")
    async with serving(app, tokens="required", max_wait=0.01) as client:
        header = ("-H", f"Authorization: Bearer {token}")
        await schemathesis(client.url, tmp_path, *header, "--phases", "fuzzing", "--max-examples", "1", *HALT)


@pytest.mark.slow
async def test_a_halt_keeps_its_promises(app: Mainspring, tmp_path: Path) -> None:
    async with serving(app) as client:
        only = ("--include-path", "/v1/halt", "--include-path", "/v1/resume", "--include-path", "/v1/halts")
        await schemathesis(client.url, tmp_path, *only, "--phases", PHASES, "--max-examples", "5", skip=WITHOUT_TOKENS)
        await app.resume()
