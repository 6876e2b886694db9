"""How the methods of the client are declared: each once, for both clients.

    class Jobs(Resource[S]):
        @operation("GET", "/v1/jobs/{job_id}", JobView)
        def get(self, job_id: str) -> Given:
            return Given(path={"job_id": job_id})

`Jobs[SyncRunner].get` takes a job_id and returns a JobView; `Jobs[AsyncRunner].get` takes the same and returns a
coroutine. Type checkers know both. A test compares all operations with the OpenAPI document.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from mainspring.client.exchange import KEY, Call, exchange, new_key
from mainspring.client.request import Request, json_of, path_of
from mainspring.client.runners import AsyncRunner, SyncRunner
from mainspring.client.steps import Items, Steps

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=SyncRunner | AsyncRunner)


class Resource(Generic[S]):
    """Methods about one kind of thing."""

    def __init__(self, runner: S) -> None:
        self.runner = runner


@dataclass(frozen=True, slots=True)
class Given:
    """What a method sends."""

    path: Mapping[str, str] = field(default_factory=dict)  # the parameters of the path
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None  # None: no body
    headers: Mapping[str, str | None] = field(default_factory=dict)  # those that are None are left out
    key: str | None = None  # the idempotency key; None: a new one
    has_key: bool = True  # False: send none
    wait: float = 0.0  # seconds for which the service may wait before it answers


class Method(Generic[P, T]):
    """A method that both clients have."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self.function = function
        self.signature = inspect.signature(function)

    def bound(self, resource: Resource[Any], act: Callable[..., Any]) -> Any:
        @functools.wraps(self.function)
        def method(*args: Any, **kwargs: Any) -> Any:
            return act(self.steps(resource, *args, **kwargs))

        _, *rest = self.signature.parameters.values()
        method.__signature__ = self.signature.replace(  # type: ignore[attr-defined] # so that help() shows it
            parameters=rest, return_annotation=inspect.Signature.empty
        )
        return method

    def steps(self, resource: Resource[Any], *args: Any, **kwargs: Any) -> Any:
        return self.function(resource, *args, **kwargs)


class Procedure(Method[P, T]):
    """A method with steps of its own."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Resource[SyncRunner], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Resource[AsyncRunner], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self.bound(instance, instance.runner.run)


class Operation(Procedure[P, T]):
    """A method that is one request."""

    method: str
    path: str
    answer: type[T]
    also: frozenset[int]

    def call(self, given: Given, timeout: float) -> Call[T]:
        headers = {name: value for name, value in given.headers.items() if value is not None}
        is_conditional = bool(headers)  # If-Match: a repetition would fail by the effect of the first attempt, unless
        has_key = self.method == "POST" and given.has_key  # the service recognizes it
        if given.body is not None:
            headers["content-type"] = "application/json"
        if has_key:
            headers[KEY] = given.key or new_key()
        body = None if given.body is None else json_of(given.body)
        request = Request(self.method, path_of(self.path, given.path, given.query), headers, body, timeout)
        return Call(request, self.answer, is_repeatable=has_key or not is_conditional, also=self.also)

    def steps(self, resource: Resource[Any], *args: Any, **kwargs: Any) -> Steps[T]:
        return self.send(resource, self.function(resource, *args, **kwargs))

    def send(self, resource: Resource[Any], given: Given, retry_for: float | None = None) -> Steps[T]:
        connection = resource.runner.connection
        return exchange(self.call(given, connection.timeout + given.wait), connection, retry_for)


class Listing(Method[P, T]):
    """A method over whose items the caller iterates. If it is not made of pages, it names its route."""

    method: str = ""
    path: str = ""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Resource[SyncRunner], owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, instance: Resource[AsyncRunner], owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self.bound(instance, instance.runner.iterate)


def operation(
    method: str, path: str, answer: type[T], *, also: frozenset[int] = frozenset()
) -> Callable[[Callable[Concatenate[Any, P], Given]], Operation[P, T]]:
    """Declare a method that is one request. Statuses in `also` are answers of the same model, and not errors."""

    def declare(function: Callable[Concatenate[Any, P], Given]) -> Operation[P, T]:
        made: Operation[P, T] = Operation(function)
        made.method, made.path, made.answer, made.also = method, path, answer, also
        return made

    return declare


def procedure(function: Callable[Concatenate[Any, P], Steps[T]]) -> Procedure[P, T]:
    """Declare a method that makes several requests."""
    return Procedure(function)


def listing(function: Callable[Concatenate[Any, P], Items[T]]) -> Listing[P, T]:
    """Declare a method whose items the caller iterates over."""
    return Listing(function)


def stream(method: str, path: str) -> Callable[[Callable[Concatenate[Any, P], Items[T]]], Listing[P, T]]:
    """Declare a method whose items come over a connection that stays open."""

    def declare(function: Callable[Concatenate[Any, P], Items[T]]) -> Listing[P, T]:
        made: Listing[P, T] = Listing(function)
        made.method, made.path = method, path
        return made

    return declare
