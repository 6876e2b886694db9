"""`mainspring worker module:app`: run a worker, or supervise several."""

from __future__ import annotations

import os
import signal
import sys
import threading
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mainspring.cli import logs
from mainspring.cli.exits import UsageError
from mainspring.cli.loading import load
from mainspring.cli.moments import parse_seconds
from mainspring.cli.parser import Commands, add_command, parse_names, parse_positive
from mainspring.cli.supervisor import NUMBER_VARIABLE, Supervisor
from mainspring.cli.terminal import Terminal
from mainspring.cli.watch import Watch
from mainspring.errors import ConfigurationError, MissingExtra
from mainspring.log import get_log
from mainspring.log_redaction import use_in_logs

if TYPE_CHECKING:
    from mainspring.app import Mainspring

NEVER = "never"
SUPERVISED_SHARE = 0.5  # a worker with a supervisor exits when this share of its slots is stuck
DETAIL = """\
Runs until SIGTERM or Ctrl-C, then finishes its running jobs within --grace. A second signal stops it at once and hands
unfinished jobs back. With several --workers or --reload, this process only supervises the workers, and restarts
each one that dies."""


def add_commands(commands: Commands) -> None:
    parser = add_command(commands, "worker", run_worker, "run jobs", DETAIL)
    parser.add_argument(
        "app", nargs="?", metavar="MODULE:ATTRIBUTE",
        help="the application, found from the current directory: shop.jobs:app (or MAINSPRING_APP)",
    )  # fmt: skip
    parser.add_argument(
        "--queues", type=parse_weights, metavar="QUEUE[=WEIGHT],…",
        help="the queues to take from, with their shares: mail=3,default (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--strict", action="store_true", help="take from a queue only when the queues named before it are empty"
    )
    parser.add_argument(
        "--queue-concurrency", action="extend", type=parse_concurrencies, default=[], metavar="QUEUE=N,…",
        help="run at most N jobs of QUEUE at once in each worker",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=parse_positive, metavar="N", help="jobs at once, per worker (default: 100)"
    )
    parser.add_argument(
        "--prefetch", type=parse_number, metavar="N",
        help="claim at most N jobs ahead, per worker; 0: only those that can start at once (default: 2000)",
    )  # fmt: skip
    parser.add_argument(
        "--workers",
        type=parse_positive,
        default=1,
        metavar="N",
        help="how many workers, each in its own process (default: 1)",
    )
    parser.add_argument(
        "--child-processes", type=parse_positive, metavar="N",
        help='child processes per worker for tasks with isolation="process" (default: one per processor)',
    )  # fmt: skip
    parser.add_argument(
        "--grace", type=parse_seconds, metavar="LENGTH", help="how long running jobs may take to finish (default: 30s)"
    )
    parser.add_argument(
        "--exit-when-stuck", type=parse_share, metavar="SHARE",
        help="exit with code 5 when this share of the slots is stuck, so that a supervisor restarts the worker: 0.5 or"
        " never (default: 0.5 with --reload or several --workers, else never)",
    )  # fmt: skip
    parser.add_argument(
        "--log-level", choices=logs.LEVELS,
        help="the lowest level that is logged (default: info; or MAINSPRING_LOG_LEVEL)",
    )  # fmt: skip
    parser.add_argument(
        "--log-format", choices=logs.FORMATS,
        help="the format of log lines (default: text; json with --json; or MAINSPRING_LOG_FORMAT)",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-port", type=parse_number, metavar="N",
        help="serve /metrics for Prometheus on this port; 0: any that is free (or MAINSPRING_METRICS_PORT)."
        " Each of several --workers takes the next port",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-host", metavar="ADDRESS",
        help="the address for --metrics-port (default: 127.0.0.1); others need MAINSPRING_METRICS_TOKEN",
    )  # fmt: skip
    parser.add_argument(
        "--log-completions", action="store_true", help="log each job that completes, with how long it ran"
    )
    parser.add_argument("--reload", action="store_true", help="restart when a .py file below this directory changes")
    parser.add_argument("--parent-pipe", type=int, help=SUPPRESS)  # the supervisor gives it to its children


def run_worker(args: Namespace, terminal: Terminal) -> int:
    path = args.app or os.environ.get("MAINSPRING_APP")
    if not path:
        msg = "name the application: mainspring worker module:attribute, such as shop.jobs:app (or set MAINSPRING_APP)"
        raise UsageError(msg, args.prog)
    logs.set_up(**logs.chosen(args, as_json=terminal.json), final=True)
    if args.parent_pipe is None and (args.workers > 1 or args.reload):
        return supervise(args)
    if args.parent_pipe is not None:
        stop_with_parent(args.parent_pipe)
    return work(args, path)


def work(args: Namespace, path: str) -> int:
    from mainspring.telemetry import turn_on_by_environment
    from mainspring.worker import Worker, WorkerSettings

    app = load(path)
    use_in_logs(app.redaction)
    turn_on_by_environment(app)
    worker = Worker(app, WorkerSettings(**make_settings(args)))
    with metrics_of(app, args):
        return worker.run()


def metrics_of(app: Mainspring, args: Namespace) -> AbstractContextManager[object]:
    """Serve metrics if a port is given."""
    port = metrics_port(args)
    if port is None:
        return nullcontext()
    try:
        from mainspring.metrics import MetricsServer
    except ImportError as error:
        msg = f"metrics need another package ({error}); install it with: pip install 'mainspring[metrics]'"
        raise MissingExtra(msg) from error
    host = args.metrics_host or os.environ.get("MAINSPRING_METRICS_HOST") or "127.0.0.1"
    return MetricsServer(app, port=port, host=host)


def metrics_port(args: Namespace) -> int | None:
    """Return the port for the metrics of this process: each child of a supervisor has the next one."""
    port, text = args.metrics_port, os.environ.get("MAINSPRING_METRICS_PORT")
    if port is None and text:
        if not text.isdecimal():
            msg = f"MAINSPRING_METRICS_PORT is {text!r}; give the number of a port"
            raise ConfigurationError(msg)
        port = int(text)
    if not port:
        return 0 if port == 0 else None
    number = 0 if args.parent_pipe is None else int(os.environ.get(NUMBER_VARIABLE, "0"))
    return int(port) + number


def make_settings(args: Namespace) -> dict[str, Any]:
    """Return only the settings that were given; the worker has its own defaults."""
    from mainspring.worker.settings import subscriptions

    settings: dict[str, Any] = {"strict": args.strict, "log_completions": args.log_completions}
    if args.queues or args.queue_concurrency:
        settings["queues"] = subscriptions(args.queues or "*", dict(args.queue_concurrency))
    for name in ("concurrency", "child_processes", "grace", "prefetch"):
        if (value := getattr(args, name)) is not None:
            settings[name] = value
    if (share := exit_when_stuck(args)) is not None:
        settings["exit_when_stuck"] = share
    return settings


def exit_when_stuck(args: Namespace) -> float | None:
    """Return the share of stuck slots at which the worker exits; None for never.

    The default is set only if a supervisor restarts the worker: without one, half a worker is better than none.
    """
    if args.exit_when_stuck is None:
        return SUPERVISED_SHARE if args.parent_pipe is not None else None
    return None if args.exit_when_stuck == NEVER else float(args.exit_when_stuck)


def supervise(args: Namespace) -> int:
    command = [sys.executable, "-m", "mainspring", *args.argv]
    watch = Watch(Path.cwd()) if args.reload else None
    return Supervisor(command, args.workers, watch).run()


def stop_with_parent(pipe: int) -> None:
    """Drain when the parent dies. However it dies, the kernel closes its end of the pipe."""
    os.set_inheritable(pipe, False)  # noqa: FBT003 - processes that jobs start must not inherit the pipe

    def wait() -> None:
        while os.read(pipe, 1):
            pass
        get_log("mainspring.worker").warning("parent_gone", pid=os.getpid())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="mainspring-parent", daemon=True).start()


# -- values ---------------------------------------------------------------------------------------


def parse_share(text: str) -> float | str:
    if text == NEVER:
        return NEVER
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"{text!r} is not a share of the slots; write a number above 0 and up to 1, such as 0.5, or {NEVER}"
        raise ArgumentTypeError(msg)
    return share


def parse_number(text: str) -> int:
    if not text.isdecimal():
        msg = f"{text!r} is not a whole number of at least 0"
        raise ArgumentTypeError(msg)
    return int(text)


def parse_weights(text: str) -> dict[str, int]:
    """Parse queues and weights: `mail=3,default`. A queue without a number has weight 1."""
    pairs = [name.partition("=") for name in parse_names(text)]
    if not pairs:
        msg = f"{text!r} does not name a queue; write mail=3,default"
        raise ArgumentTypeError(msg)
    return {queue.strip(): parse_positive(number) if equals else 1 for queue, equals, number in pairs}


def parse_concurrencies(text: str) -> list[tuple[str, int]]:
    concurrencies = []
    for name in parse_names(text):
        queue, equals, number = name.partition("=")
        if not equals:
            msg = f"{name!r} has no number; write mail=10"
            raise ArgumentTypeError(msg)
        concurrencies.append((queue.strip(), parse_positive(number)))
    return concurrencies
