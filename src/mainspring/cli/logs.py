"""Log lines on standard error: as text for people, as JSON for machines; through structlog if the program uses it.

This is set up before the application is imported, so that an application can set up its own logging instead.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mainspring.cli.terminal import has_colour
from mainspring.errors import ConfigurationError
from mainspring.log import add_context, add_job, context_fields, job_fields, request_id, set_up_children
from mainspring.log_redaction import RedactingFormatter
from mainspring.redaction import DEFAULT

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
DEFAULT_FILE = Path("mainspring.toml")


def chosen(args: Namespace, *, as_json: bool) -> dict[str, Any]:
    """Return the level and the format of a worker's lines, as arguments of `set_up`.

    The command line overrides the environment, and the environment overrides the file, as for `mainspring serve`.
    `as_json` is the format if nothing names one.
    """
    file = settings_in(DEFAULT_FILE)
    given = [args.log_level, os.environ.get("MAINSPRING_LOG_LEVEL"), os.environ.get("LOG_LEVEL"), file.get("log_level")]
    level = one_of(LEVELS, "log_level", given, "info")
    given = [args.log_format, os.environ.get("MAINSPRING_LOG_FORMAT"), file.get("log_format")]
    form = one_of(FORMATS, "log_format", given, "json" if as_json else "text")
    return {"level": level, "as_json": form == "json"}


def one_of(allowed: Sequence[str], name: str, given: Iterable[object], default: str) -> str:
    value = next((value for value in given if value is not None), default)
    if not isinstance(value, str) or value.lower() not in allowed:
        msg = f"{name} is {value!r}; use one of {', '.join(allowed)}"
        raise ConfigurationError(msg)
    return value.lower()


def settings_in(file: Path) -> Mapping[str, Any]:
    """Return what a settings file says; nothing if there is none."""
    import tomllib

    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"cannot read the settings in {file}: {error}"
        raise ConfigurationError(msg) from None


def set_up(level: str, *, as_json: bool, import_structlog: bool = True, final: bool = False) -> None:
    """Set up logging, and do the same in child processes of a worker.

    With `import_structlog=False`, structlog is set up only if the application imports it, because importing it takes
    longer than most commands. With `final`, loggers keep these settings from their first line on, so that lines below
    the level cost little.
    """
    set_up_children(partial(set_up, level, as_json=as_json, import_structlog=import_structlog, final=final))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(JsonFormatter() if as_json else TextFormatter()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
    if import_structlog:
        with contextlib.suppress(ImportError):
            import structlog  # noqa: F401
    call_after_import("structlog", partial(use_structlog, handler, level, as_json=as_json, final=final))


def use_structlog(handler: logging.Handler, level: str, *, as_json: bool, final: bool) -> None:
    """Configure structlog, and let the handler format lines of structlog and logging alike."""
    import structlog

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_context if as_json else add_job,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=final,
    )
    last: list[Any]
    if as_json:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=has_colour(sys.stderr), pad_event_to=24, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, *last])
    known = handler.formatter.redaction if isinstance(handler.formatter, RedactingFormatter) else DEFAULT
    handler.setFormatter(RedactingFormatter(formatter, known))


def call_after_import(module: str, function: Callable[[], None]) -> None:
    """Call the function once the module is imported: now, or when the program imports it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AfterImport)]
    if sys.modules.get(module) is not None:
        function()
    else:
        sys.meta_path.insert(0, AfterImport(module, function))


class AfterImport:
    """Finds a module as Python does, and calls a function at the end of its import."""

    def __init__(self, module: str, function: Callable[[], None]) -> None:
        self._module = module
        self._function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            self._function()

        loader.exec_module = exec_module


class TextFormatter(logging.Formatter):
    """Formats lines like `2026-05-01T09:30:00.123Z [info] worker_started worker='…' [mainspring.worker]`."""

    def format(self, record: logging.LogRecord) -> str:
        job = {} if hasattr(record, "fields") else text_fields()
        words = [record.getMessage(), f"[{record.name}]", *(f"{name}={value!r}" for name, value in job.items())]
        line = f"{timestamp(record)} [{record.levelname.lower():<7}] {' '.join(words)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """Formats each line as a JSON object, in the same shape as structlog does."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        event = record.getMessage().split(" ", 1)[0] if fields else record.getMessage()
        about = {"logger": record.name, "level": record.levelname.lower(), "timestamp": timestamp(record)}
        entry = {**context_fields(), **fields, "event": event.strip(), **about}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def text_fields() -> dict[str, str]:
    """Return what a line for people is about; less than a line for machines has."""
    request = request_id.get()
    return job_fields() if request is None else {"request_id": request, **job_fields()}


def timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03}Z"
