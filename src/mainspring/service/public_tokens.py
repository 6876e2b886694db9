"""Public tokens: `msp_<key>_<claims>.<signature>`. A web page may have one, to follow the jobs of its user.

A public token names the jobs, or the target, that its holder may read, and when it expires. It is signed, not stored.
It ends earlier if the token of the program that made it is revoked, or if its signing key is forgotten.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis
from mainspring.errors import ConfigurationError
from mainspring.service.signing_keys import LONGEST_TOKEN
from mainspring.service.tokens import Scope, Token, Tokens

if TYPE_CHECKING:
    from mainspring.job import Job

PREFIX = "msp_"
SHAPE = re.compile(rf"{PREFIX}([0-9a-f]+)_([0-9A-Za-z_-]+)\.([0-9A-Za-z_-]{{43}})")
PURPOSE = "mainspring public token 1"  # a signature for something else is never one of these
DEFAULT_TTL = 15 * 60.0  # seconds
LONGEST_TTL = LONGEST_TOKEN / 1000
MOST_JOBS = 20  # of one token; it is sent with each request
LONGEST_TEXT = 4_096  # characters of a token: servers limit the size of headers


@dataclass(frozen=True, slots=True)
class Grant:
    """What a public token allows: to read these jobs, or the jobs of this target, until it expires."""

    expires_at: Millis
    issuer: str  # the id of the token that made it; empty: a program of this machine, without a token
    jobs: tuple[str, ...] = ()
    target: tuple[str, str] | None = None
    with_result: bool = False
    id: str = ""  # tells tokens apart, and is not a secret
    key: str = ""  # the id of the key that signed it

    def covers(self, job: Job) -> bool:
        return job.id in self.jobs or (self.target is not None and job.target == self.target)

    def may_cover(self, job_id: str) -> bool:
        """Return whether the job can be one of them; False is known without reading the job."""
        return self.target is not None or job_id in self.jobs


@dataclass(frozen=True, slots=True)
class Holder:
    """Who comes with a public token: what it allows, and the token that made it."""

    grant: Grant
    issuer: Token | None


class PublicTokens:
    """Makes public tokens and checks them."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def create(
        self,
        *,
        jobs: tuple[str, ...] = (),
        target: tuple[str, str] | None = None,
        ttl: float = DEFAULT_TTL,
        with_result: bool = False,
        issuer: str = "",
    ) -> tuple[Grant, str]:
        """Return a new token and its text. Nothing is stored."""
        check(jobs, target, ttl)
        expires_at = self._tokens.now() + round(ttl * 1000)
        grant = Grant(expires_at, issuer, tuple(dict.fromkeys(jobs)), target, with_result)
        key = await self._tokens.signing_keys.current()
        claims = encode(json.dumps(to_claims(grant), ensure_ascii=False, separators=(",", ":")).encode())
        text = f"{PREFIX}{key.id}_{claims}.{encode(key.sign(f'{PURPOSE}.{claims}'))}"
        if len(text) > LONGEST_TEXT:
            msg = f"the token would have {len(text):,} characters, and {LONGEST_TEXT:,} are allowed; name fewer jobs"
            raise ConfigurationError(msg)
        return grant, text

    async def find(self, text: str) -> Holder | None:
        """Return who holds this token; None if it is forged, expired, or made by a token that is not valid any more."""
        grant = await self._verified(text)
        if grant is None or grant.expires_at <= self._tokens.now():
            return None
        if not grant.issuer:
            return Holder(grant, None)
        issuer = await self._tokens.by_id(grant.issuer)
        return Holder(grant, issuer) if issuer is not None and issuer.allows(Scope.READ) else None

    async def _verified(self, text: str) -> Grant | None:
        """Return what a token says if its signature is right. Nothing of it is read before that."""
        found = SHAPE.fullmatch(text) if len(text) <= LONGEST_TEXT else None
        if found is None:
            return None
        key_id, claims, signature = found.groups()
        key = await self._tokens.signing_keys.find(key_id)
        if key is None or (key.ends_at is not None and key.ends_at <= self._tokens.now()):
            return None
        if not hmac.compare_digest(encode(key.sign(f"{PURPOSE}.{claims}")), signature):
            return None
        grant = from_claims(json.loads(decode(claims)))
        return replace(grant, id=hashlib.sha256(text.encode()).hexdigest()[:16], key=key_id)


def check(jobs: tuple[str, ...], target: tuple[str, str] | None, ttl: float) -> None:
    if bool(jobs) == (target is not None):
        msg = "a public token is for jobs or for a target: give one of them"
        raise ConfigurationError(msg)
    if len(jobs) > MOST_JOBS:
        msg = f"a public token is for up to {MOST_JOBS} jobs, not {len(jobs)}; give the jobs a target, and name that"
        raise ConfigurationError(msg)
    if not 0 < ttl <= LONGEST_TTL:
        msg = f"ttl is {ttl:g} seconds; a public token is valid for up to {LONGEST_TTL:,.0f} seconds (24 hours)"
        raise ConfigurationError(msg)


def to_claims(grant: Grant) -> dict[str, Any]:
    claims: dict[str, Any] = {"exp": grant.expires_at, "by": grant.issuer}
    claims |= {"jobs": grant.jobs} if grant.target is None else {"target": grant.target}
    return {**claims, "result": True} if grant.with_result else claims


def from_claims(claims: dict[str, Any]) -> Grant:
    target = claims.get("target")
    return Grant(
        expires_at=claims["exp"],
        issuer=claims["by"],
        jobs=tuple(claims.get("jobs", ())),
        target=None if target is None else (target[0], target[1]),
        with_result=claims.get("result", False),
    )


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
