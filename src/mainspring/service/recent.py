"""What a process has read of secrets that callers sent: which were right, and which were wrong."""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")
NEVER = float("-inf")


class Recent(Generic[T]):
    """Remembers answers by the hash of a secret. Right and wrong ones have separate room.

    Anyone can send wrong secrets, as many as they like. They must not push out the right ones: each request would then
    read the store.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._right: dict[str, tuple[float, T | None]] = {}
        self._wrong: dict[str, tuple[float, T | None]] = {}

    def get(self, key: str) -> tuple[float, T | None]:
        """Return when the answer was read, and the answer; None: the secret is wrong."""
        return self._right.get(key) or self._wrong.get(key) or (NEVER, None)

    def put(self, key: str, read_at: float, found: T | None) -> None:
        self._right.pop(key, None)
        self._wrong.pop(key, None)
        answers = self._wrong if found is None else self._right
        if len(answers) >= self._most:
            del answers[next(iter(answers))]  # the one that was read first
        answers[key] = read_at, found

    def clear(self) -> None:
        self._right.clear()
        self._wrong.clear()
