"""The ports have the signatures of the story, and the layers know only what they may."""

from __future__ import annotations

import ast
import inspect
import typing
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import examples.petitions.application.ports.job_scheduler as port_module
from examples.petitions.application.ports import JobReleaseProtocol, JobSchedulerProtocol
from examples.petitions.domain.models import ScheduledJob
from examples.petitions.infrastructure.adapters import PostgresJobScheduler
from examples.petitions.infrastructure.stubs import JobSchedulerStub

ROOT = Path(port_module.__file__).parents[2]
SIGNATURES: dict[str, dict[str, Any]] = {
    "schedule": {"job_type": str, "payload": dict[str, Any], "run_at": datetime, "return": UUID},
    "cancel": {"job_id": UUID, "return": bool},
    "get_pending_jobs": {"limit": int, "return": list[ScheduledJob]},
    "mark_completed": {"job_id": UUID, "return": type(None)},
    "mark_failed": {"job_id": UUID, "reason": str, "return": type(None)},
}


@pytest.mark.parametrize("kind", [JobSchedulerProtocol, JobSchedulerStub, PostgresJobScheduler])
@pytest.mark.parametrize("method", SIGNATURES)
def test_the_methods_have_the_signatures_of_the_story(kind: type, method: str) -> None:
    function = getattr(kind, method)
    assert inspect.iscoroutinefunction(function)
    assert typing.get_type_hints(function) == SIGNATURES[method]


def test_the_port_has_these_methods_and_no_others() -> None:
    assert {name for name in vars(JobSchedulerProtocol) if not name.startswith("_")} == set(SIGNATURES)


def test_the_stub_implements_the_port() -> None:
    assert isinstance(JobSchedulerStub(), JobSchedulerProtocol)
    assert isinstance(JobSchedulerStub(), JobReleaseProtocol)


def test_the_port_names_the_constraints_that_it_honours() -> None:
    text = JobSchedulerProtocol.__doc__ or ""
    assert all(name in text for name in ("CT-11", "CT-12", "HP-1"))


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize(
    ("layer", "forbidden"),
    [
        ("domain", ("examples.petitions.application", "examples.petitions.infrastructure", "mainspring", "psycopg")),
        ("application", ("examples.petitions.infrastructure", "mainspring", "psycopg")),
        ("infrastructure", ("examples.petitions.system", "examples.petitions.application.services")),
        (".", ("mainspring.stores", "mainspring.runtime", "mainspring.worker", "tests")),
    ],
)
def test_each_layer_imports_only_what_it_may(layer: str, forbidden: tuple[str, ...]) -> None:
    paths = list((ROOT / layer).rglob("*.py"))
    assert paths
    for path in paths:
        wrong = [name for name in imports_of(path) if name.startswith(forbidden)]
        assert not wrong, path
