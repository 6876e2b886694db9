"""What a worker publishes of a task: all that an enqueue needs to know of it, except its code."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mainspring.clock import Millis, duration, to_datetime
from mainspring.errors import ConfigurationError, StoreTooNew
from mainspring.features.delivery.options import AnyWindow, PersonWindow, window_of
from mainspring.job import KEEP_FOREVER, Priority
from mainspring.options import Defaults, EnqueueOptions, Retention, keep_of
from mainspring.retry import Retry
from mainspring.services import PUBLISHED_TASKS
from mainspring.stores.documents import Document, Key

if TYPE_CHECKING:
    from mainspring.task import Task

FORMAT = 1  # of the documents
MAX_SCHEMA_CHARS = 100_000  # an item of DynamoDB has at most 400 KB
MAX_SUMMARY_CHARS = 200
IN_CODE: Mapping[str, Any] = {}
"""The data of a delivery window whose person only the task's code can find in a payload."""


@dataclass(frozen=True, slots=True)
class Description:
    """A task as its worker has published it."""

    name: str
    schema: Mapping[str, Any] | bool | None  # the JSON Schema of its payload; None: see `problem`
    problem: str = ""  # why there is no schema
    summary: str = ""  # the first line of the function's docstring
    options: Mapping[str, Any] = field(default_factory=dict)  # the task's own, as JSON data
    defaults: Mapping[str, Any] = field(default_factory=dict)  # under its options: of the application and its queues
    steps: tuple[str, ...] = ()  # of a durable function, declared in advance
    chunk: bool = False  # one call of its handler runs several jobs
    worker: str = ""  # that published it
    published_at: datetime | None = None

    @property
    def queue(self) -> str:
        return str(self.options.get("queue") or "default")

    def hash(self) -> str:
        """Return the hash of all that the code says: equal descriptions need not be written again."""
        return hashlib.sha256(json.dumps(self._of_code(), sort_keys=True).encode()).hexdigest()

    def _of_code(self) -> dict[str, Any]:
        data = asdict(self)
        del data["worker"], data["published_at"]
        return data

    def to_json(self, worker: str, now: Millis) -> str:
        return json.dumps({**self._of_code(), "format": FORMAT, "worker": worker, "at": now, "hash": self.hash()})

    @classmethod
    def read(cls, document: Document) -> Description:
        data = json.loads(document.data)
        if data.pop("format") > FORMAT:
            msg = f"a newer Mainspring has published task {document.key.id!r}; upgrade this program"
            raise StoreTooNew(msg)
        at, _hash = data.pop("at"), data.pop("hash")
        return cls(**{**data, "steps": tuple(data["steps"]), "published_at": to_datetime(at)})


def key_of(name: str) -> Key:
    return Key(PUBLISHED_TASKS, "", name)


def hash_in(document: Document) -> str:
    return str(json.loads(document.data).get("hash", ""))


# -- from a task --------------------------------------------------------------------------------------------


def describe(task: Task[..., Any, Any]) -> Description:
    """Return what is published of a task."""
    schema, problem = schema_of(task)
    summary = (inspect.getdoc(task.function) or "").partition("\n")[0][:MAX_SUMMARY_CHARS]
    options, defaults = to_data(task.options), defaults_data(task.shared.defaults)
    return Description(
        task.name, schema, problem, summary, options, defaults, tuple(task.plan), chunk=task.chunk is not None
    )


def schema_of(task: Task[..., Any, Any]) -> tuple[Mapping[str, Any] | bool | None, str]:
    """Return the JSON Schema of a task's payload, or why there is none that others could use."""
    from mainspring.json_schema import SchemaCheck  # noqa: PLC0415 - most programs publish nothing

    try:
        schema = task.payload.json_schema()
        SchemaCheck(schema)
    except ConfigurationError as error:
        return None, str(error)
    if (size := len(json.dumps(schema))) > MAX_SCHEMA_CHARS:
        return None, f"its JSON Schema has {size:,} characters; at most {MAX_SCHEMA_CHARS:,} are published"
    return schema, ""


def defaults_data(defaults: Defaults) -> dict[str, Any]:
    app, queues = defaults.declared
    return {"app": to_data(app), "queues": {queue: to_data(options) for queue, options in sorted(queues.items())}}


def defaults_of(data: Mapping[str, Any]) -> Defaults:
    defaults = Defaults(from_data(data.get("app", {})))
    for queue, options in data.get("queues", {}).items():
        defaults.set_queue(queue, from_data(options), ())
    return defaults


# -- options as data ----------------------------------------------------------------------------------------


def to_data(options: EnqueueOptions) -> dict[str, Any]:
    """Return the options of a task, a queue or an application as JSON data. Times are in seconds."""
    data: dict[str, Any] = {**options}
    if (retry := options.get("retry")) is not None:
        data["retry"] = retry_data(retry)
    if (timeout := options.get("timeout")) is not None:
        data["timeout"] = duration(timeout) / 1000
    if (retention := options.get("retention")) is not None:
        data["retention"] = {"completed": kept(retention.completed), "dead": kept(retention.dead)}
    if (priority := options.get("priority")) is not None:
        data["priority"] = Priority.parse(priority).name.lower()
    if (expires := options.get("expires")) is not None:
        data["expires"] = expires.isoformat() if isinstance(expires, datetime) else duration(expires) / 1000
    if (tags := options.get("tags")) is not None:
        data["tags"] = list(tags)
    if (window := options.get("deliver")) is not None:
        data["deliver"] = window_data(window)
    return data


def from_data(data: Mapping[str, Any]) -> EnqueueOptions:
    """Return options that were published, as an enqueue takes them."""
    options: dict[str, Any] = {**data}
    if "retry" in data:
        options["retry"] = Retry.from_data(dict(data["retry"]))
    if "retention" in data:
        options["retention"] = Retention(**data["retention"])
    if isinstance(data.get("expires"), str):
        options["expires"] = datetime.fromisoformat(data["expires"])
    if "tags" in data:
        options["tags"] = tuple(data["tags"])
    if "deliver" in data:
        options["deliver"] = window_from(data["deliver"])
    return options  # type: ignore[return-value] # what `to_data` has made of such options


def retry_data(retry: Retry) -> dict[str, Any]:
    """Return the policy; of one with code only the number of attempts, which is all that an enqueue needs."""
    try:
        return retry.to_data()
    except ConfigurationError:
        return {"max_attempts": retry.max_attempts}


def kept(length: Any) -> float | str:
    milliseconds = keep_of(length, "completed")
    return "forever" if milliseconds == KEEP_FOREVER else milliseconds / 1000


def window_data(window: AnyWindow) -> Mapping[str, Any]:
    if isinstance(window, PersonWindow) and not isinstance(window.person, str):
        return IN_CODE
    return window.to_data()


def window_from(data: Mapping[str, Any]) -> AnyWindow:
    return window_of(data) if data else PersonWindow(found_by_the_task)


def found_by_the_task(_payload: Any) -> str:
    """Stand for a function of the task's code. The worker that claims the job calls the real one."""
    msg = "only the task's own code can find the person in a payload"
    raise ConfigurationError(msg)
