"""Transactions on the petitions' tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.types.json import Jsonb

from examples.petitions.domain.models import Notice, Petition, PetitionState, Referral, ReferralState, ScheduledJob
from examples.petitions.infrastructure.adapters.scheduling import PostgresJobScheduler

Connection = AsyncConnection[Any]

ENOUGH = """
SELECT id, title, state FROM petitions.petitions AS petition
WHERE state = 'received' AND (SELECT count(*) FROM petitions.cosigners WHERE petition_id = petition.id) >= %s
ORDER BY id FOR UPDATE
"""


class PostgresPetitions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def add(self, petition: Petition) -> None:
        await self._connection.execute(
            "INSERT INTO petitions.petitions (id, title, state) VALUES (%s, %s, %s)",
            [petition.id, petition.title, petition.state],
        )

    async def get(self, petition_id: UUID) -> Petition:
        found = await self._connection.execute(
            "SELECT id, title, state FROM petitions.petitions WHERE id = %s FOR UPDATE", [petition_id]
        )
        if (row := await found.fetchone()) is None:
            raise LookupError(f"there is no petition {petition_id}")
        return Petition(row[0], row[1], PetitionState(row[2]))

    async def set_state(self, petition_id: UUID, state: PetitionState) -> None:
        await self._connection.execute(
            "UPDATE petitions.petitions SET state = %s, updated_at = now() WHERE id = %s", [state, petition_id]
        )

    async def add_referral(self, referral: Referral, deadline: datetime) -> None:
        await self._connection.execute(
            "INSERT INTO petitions.referrals (id, petition_id, knight, deadline, state) VALUES (%s, %s, %s, %s, %s)",
            [referral.id, referral.petition_id, referral.knight, deadline, referral.state],
        )

    async def get_referral(self, referral_id: UUID) -> Referral:
        found = await self._connection.execute(
            "SELECT id, petition_id, knight, state FROM petitions.referrals WHERE id = %s FOR UPDATE", [referral_id]
        )
        if (row := await found.fetchone()) is None:
            raise LookupError(f"there is no referral {referral_id}")
        return Referral(row[0], row[1], row[2], ReferralState(row[3]))

    async def set_referral_state(self, referral_id: UUID, state: ReferralState) -> None:
        await self._connection.execute("UPDATE petitions.referrals SET state = %s WHERE id = %s", [state, referral_id])

    async def add_cosigner(self, petition_id: UUID, name: str) -> None:
        await self._connection.execute(
            "INSERT INTO petitions.cosigners VALUES (%s, %s) ON CONFLICT DO NOTHING", [petition_id, name]
        )

    async def with_cosigners(self, at_least: int) -> Sequence[Petition]:
        found = await self._connection.execute(ENOUGH, [at_least])
        return [Petition(row[0], row[1], PetitionState(row[2])) for row in await found.fetchall()]


class PostgresEffects:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def applied(self, job_id: UUID) -> Sequence[Notice] | None:
        found = await self._connection.execute("SELECT notices FROM petitions.job_effects WHERE job_id = %s", [job_id])
        row = await found.fetchone()
        return None if row is None else [Notice(key, UUID(petition), text) for key, petition, text in row[0]]

    async def record(self, job: ScheduledJob, notices: Sequence[Notice]) -> None:
        listed = [[notice.key, str(notice.petition_id), notice.text] for notice in notices]
        await self._connection.execute(
            "INSERT INTO petitions.job_effects (job_id, job_type, notices) VALUES (%s, %s, %s)",
            [job.id, job.job_type, Jsonb(listed)],
        )


class PostgresWork:
    """One transaction, on a connection that the caller commits."""

    def __init__(self, connection: Connection, scheduler: PostgresJobScheduler) -> None:
        self.petitions = PostgresPetitions(connection)
        self.effects = PostgresEffects(connection)
        self._scheduler = scheduler.within(connection)

    async def schedule(self, job_type: str, payload: dict[str, Any], run_at: datetime) -> UUID:
        return await self._scheduler.schedule(job_type, payload, run_at)


class PostgresDatabase:
    """Makes transactions."""

    def __init__(self, database: str, scheduler: PostgresJobScheduler) -> None:
        self._database = database
        self._scheduler = scheduler

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[PostgresWork]:
        """Begin a transaction. It is committed at the end of the block, and rolled back if the block raises."""
        async with await AsyncConnection.connect(self._database) as connection:
            yield PostgresWork(connection, self._scheduler)
