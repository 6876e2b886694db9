"""The routers of all resources but jobs, tasks, queues and tokens, in the order in which they are matched."""

from __future__ import annotations

from fastapi import APIRouter

from mainspring.service import (
    audit,
    batches,
    breakers,
    bulk,
    dead,
    error_pages,
    failures,
    limits,
    live_settings,
    login,
    numbers,
    people,
    probes,
    public_jobs,
    reference,
    schedules,
    session_routes,
    signals,
    static_files,
    users,
)

ROUTERS: tuple[APIRouter, ...] = (
    dead.router,
    failures.router,
    bulk.router,
    audit.router,
    numbers.router,
    schedules.router,
    breakers.router,
    batches.router,
    signals.router,
    limits.router,
    live_settings.router,
    people.router,
    probes.router,
    users.router,
)

BROWSER_ROUTERS: tuple[APIRouter, ...] = (
    public_jobs.router,
    static_files.router,
    error_pages.router,
    reference.router,
    login.router,
    session_routes.router,
)
"""What browsers use; docs/service-browser.md describes it."""
