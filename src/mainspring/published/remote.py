"""A task whose code is in another program: it can be enqueued, by what its workers have published of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Unpack

from mainspring.errors import ConfigurationError, InvalidPayload
from mainspring.features.delivery.options import Window
from mainspring.features.durable.plan import StepPlan
from mainspring.json_schema import SchemaCheck
from mainspring.options import Defaults, EnqueueOptions, checked
from mainspring.published.description import Description, defaults_of, from_data
from mainspring.task import Enqueuer, TaskServices


class RemoteTask:
    """A task of another program. Its jobs are like those that the program with its code would enqueue.

    What depends on the code is decided when a worker claims the job: the keys of limits, the turns of a fair task, and
    delivery hours of a person whom a function finds in the payload.
    """

    is_internal = False
    is_remote = True

    def __init__(self, shared: TaskServices, name: str, description: Description | None) -> None:
        """Without a description, nothing is known of the task: the options and defaults are those of this program."""
        self.shared = shared
        self.name = name
        self.description = description
        self.options: EnqueueOptions = {} if description is None else from_data(description.options)
        self.plan = StepPlan(dict.fromkeys(() if description is None else description.steps))
        self.payload = RemotePayload(name, description)
        self._defaults: Defaults = shared.defaults if description is None else defaults_of(description.defaults)
        self._enqueuer: Enqueuer[..., Any] = Enqueuer(self, {})

    def __repr__(self) -> str:
        return f"<RemoteTask {self.name}>"

    @property
    def window(self) -> Window | None:
        """Return its delivery hours, if they can be known without its code and without reading people."""
        window = self.options.get("deliver")
        return window if isinstance(window, Window) else None

    def using(self, **options: Unpack[EnqueueOptions]) -> Enqueuer[..., Any]:
        """Return the task with options for the next enqueue."""
        given = checked(options)
        if not given:
            return self._enqueuer
        self.check(given)
        return Enqueuer(self, given)

    def check(self, options: EnqueueOptions) -> None:
        """Raise ConfigurationError for options that this kind of task does not support."""
        if self.description is not None and self.description.chunk and options.get("isolation") == "process":
            msg = f'task {self.name!r} is a chunk task, but isolation="process" runs one job at a time: leave it out'
            raise ConfigurationError(msg)

    def with_defaults(self, options: EnqueueOptions) -> EnqueueOptions:
        return self._defaults.under(options)

    def allows_no_arguments(self) -> bool:
        """Return False: let the schema judge."""
        return False


class RemotePayload:
    """The payloads of a task of another program, judged by the JSON Schema that its workers have published."""

    def __init__(self, task: str, description: Description | None) -> None:
        self.task = task
        schema = None if description is None else description.schema
        self._check = None if schema is None else SchemaCheck(schema)

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the JSON of a payload, or of its fields by name."""
        if len(args) + bool(kwargs) > 1:
            msg = f"task {self.task!r} is of another program: give its payload as one object, or its fields by name"
            raise InvalidPayload(msg)
        return self.dump_data(args[0] if args else kwargs)

    def dump_one(self, payload: Any) -> str:
        return self.dump_data(payload)

    def dump_data(self, payload: Any) -> str:
        """Return the JSON of a payload; raise InvalidPayload if it does not fit the schema."""
        from mainspring.payload import json_of  # noqa: PLC0415 - imports Pydantic, which takes a while

        return self.check(json_of(payload, self.task))

    def check(self, text: str) -> str:
        problems = [] if self._check is None else self._check.problems(json.loads(text))
        if problems:
            msg = f"task {self.task!r} does not take this payload: {'; '.join(problems)}"
            raise InvalidPayload(msg)
        return text

    def takes(self, name: str) -> bool:
        """Return True: whether it takes the field is said by the schema."""
        del name
        return True

    def view(self, text: str) -> Any:
        data = json.loads(text)
        return SimpleNamespace(**data) if isinstance(data, Mapping) else data

    def load_result(self, data: Any) -> Any:
        """Return the result as JSON data: its type is known only where the code is."""
        return data
