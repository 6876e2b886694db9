"""Find the application of a command, by `module:attribute` or by the URL of its store."""

from __future__ import annotations

import contextlib
import importlib
import os
import sqlite3
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from types import ModuleType

from mainspring.app import Mainspring
from mainspring.cli.exits import StoreMissing, UsageError
from mainspring.stores.encrypted import bare
from mainspring.stores.protocol import Migrating
from mainspring.stores.sqlite import MemoryStore, SqliteStore
from mainspring.stores.sqlite.schema import version_of

DEFAULT_FILE = Path("mainspring.db")
WHAT_TO_GIVE = (
    "no store is named: give --app module:attribute or --store sqlite:///path/to/jobs.db, or set MAINSPRING_APP or "
    f"MAINSPRING_STORE ({DEFAULT_FILE} would be used, but it is not in this directory)"
)


@contextlib.contextmanager
def opened(args: Namespace) -> Iterator[Mainspring]:
    """Open the store of a command's application. After an interrupt, exit at once without closing it."""
    with opening(choose(args)) as app:
        yield app


@contextlib.contextmanager
def opened_to_fill(args: Namespace, *, dry_run: bool = False) -> Iterator[Mainspring]:
    """Open the store for a command that adds data: create an application's store if it is missing, as a worker would.

    A store given only by its URL is not created, because the URL may be mistyped. A dry run creates nothing and uses
    an empty store in memory.
    """
    app = choose(args)
    makes = bool(named_app(args)) and not isinstance(bare(app.store), MemoryStore) and not is_there(app)
    if makes and dry_run:
        app.runtime.store = MemoryStore()
    with opening(app, makes=makes) as app:
        yield app


@contextlib.contextmanager
def opening(app: Mainspring, *, makes: bool = False) -> Iterator[Mainspring]:
    try:
        if not makes:
            require_existing(app)
        app.run(app.store.open())
        yield app
    except Exception:
        app.run(app.close())
        raise
    app.run(app.close())


def named_app(args: Namespace) -> str | None:
    return args.app or (None if args.store else os.environ.get("MAINSPRING_APP"))


def choose(args: Namespace) -> Mainspring:
    """Return the application from the options; else from the environment; else the default file, if it exists."""
    app = chosen(args)
    if not getattr(args, "unredacted", True):
        args.terminal.redaction = app.redaction
    return app


def chosen(args: Namespace) -> Mainspring:
    if app := named_app(args):
        return load(app)
    store = args.store or os.environ.get("MAINSPRING_STORE")
    if store:
        return Mainspring(store)
    if DEFAULT_FILE.exists():
        return Mainspring(f"sqlite:///{DEFAULT_FILE}")
    raise UsageError(WHAT_TO_GIVE, args.prog)


def require_existing(app: Mainspring) -> None:
    """Raise StoreMissing if there is no store: creating an empty database would hide a mistyped path."""
    store = bare(app.store)
    if isinstance(store, MemoryStore):
        msg = "memory:// exists only within one process; its jobs cannot be seen from here"
        raise StoreMissing(msg)
    if isinstance(store, SqliteStore):
        require_database(store.file.path)
    if isinstance(store, Migrating) and app.run(store.version()) == 0:
        msg = (
            f"{store.url} has no tables of Mainspring; are the database and the schema right? A worker, the first "
            "enqueued job or `mainspring migrate` creates them"
        )
        raise StoreMissing(msg)


def is_there(app: Mainspring) -> bool:
    try:
        require_existing(app)
    except StoreMissing:
        return False
    return True


def require_database(path: Path) -> None:
    if not path.exists():
        msg = f"there is no database {path}; is the path right? A worker or the first enqueued job creates it"
        raise StoreMissing(msg)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            version = version_of(connection.cursor())
    except sqlite3.Error:
        return  # opening the store will report what is wrong
    if version == 0:
        msg = f"{path} has no tables of Mainspring; is the path right? A worker or the first enqueued job creates them"
        raise StoreMissing(msg)


# -- module:attribute -----------------------------------------------------------------------------


def load(path: str) -> Mainspring:
    """Return the application named like `shop.jobs:app`, imported from the current directory, as uvicorn does."""
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        example = f"{_as_module(module_name) or 'shop'}:app"
        msg = f"{path!r} does not name an application: write module:attribute, such as {example}"
        raise UsageError(msg)
    if module_name.endswith(".py") or "/" in module_name:
        msg = f"{module_name!r} is a file: write the module's name, {_as_module(module_name)}:{attribute}"
        raise UsageError(msg)
    module = import_module(module_name)
    found = find_attribute(module, attribute)
    if not isinstance(found, Mainspring):
        msg = f"{path} is of type {type(found).__name__}, not a Mainspring{_suggest(module)}"
        raise UsageError(msg)
    return found


def import_module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(_explain(name, error)) from error
        msg = f"there is no module {error.name!r}, looking from {here}; start in its directory or set PYTHONPATH"
        raise UsageError(msg) from error
    except (Exception, SystemExit) as error:
        raise UsageError(_explain(name, error)) from error


def _explain(name: str, error: BaseException) -> str:
    """Return the last line of the traceback, and the place in the user's code where the error was raised."""
    last = traceback.format_exception_only(error)[-1].strip()
    return f"importing {name!r} failed: {last}{_place(error)}; MAINSPRING_DEBUG=1 shows the traceback"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:  # no line of that file has run, so it is not in the traceback
        return f" ({error.filename}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames and frames[-1].filename != __file__ else ""


def find_attribute(module: ModuleType, path: str) -> object:
    try:
        found: object = reduce(getattr, path.split("."), module)
    except AttributeError:
        msg = f"module {module.__name__!r} has no attribute {path!r}{_suggest(module)}"
        raise UsageError(msg) from None
    return found


def _suggest(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Mainspring)]
    return f"; it has {', '.join(f'{module.__name__}:{name}' for name in names)}" if names else ""


def _as_module(path: str) -> str:
    return path.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
