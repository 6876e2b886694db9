"""`mainspring serve` and `mainspring config check`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from mainspring.app import Mainspring
from mainspring.cli import logs
from mainspring.cli.exits import Exit
from mainspring.cli.loading import load
from mainspring.cli.parser import Commands, Parser, add_command, add_group
from mainspring.cli.terminal import Terminal
from mainspring.errors import ConfigurationError, MissingExtra
from mainspring.log_redaction import use_in_logs

if TYPE_CHECKING:
    from mainspring.service.settings import ServiceSettings

SERVE = """\
Serves the HTTP API and runs jobs, in one process, until SIGTERM or Ctrl-C. Without an application it knows no tasks of
its own: jobs then run on workers elsewhere, in Python or through leases. Settings come from these options, from the
environment (MAINSPRING_PORT, …) and from mainspring.toml, in this order."""


def add_commands(commands: Commands) -> None:
    serve = add_command(commands, "serve", run_service, "serve the HTTP API, and run jobs", SERVE)
    add_setting_options(serve)
    config = add_group(commands, "config", "check the settings of the service")
    add_setting_options(add_command(config, "check", check_config, "report errors and warnings about the settings"))


def add_setting_options(parser: Parser) -> None:
    parser.add_argument(
        "app", nargs="?", metavar="MODULE:ATTRIBUTE",
        help="the application, found from the current directory: shop.jobs:app (or MAINSPRING_APP)",
    )  # fmt: skip
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML (default: ./mainspring.toml)")
    parser.add_argument("--store", metavar="URL", help="the store, if no application is given (or MAINSPRING_STORE)")
    parser.add_argument("--host", metavar="ADDRESS", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="N", help="the port; 0: any that is free (default: 8340)")
    parser.add_argument(
        "--no-worker", action="store_false", dest="worker", default=None, help="run no jobs here: workers elsewhere do"
    )
    parser.add_argument(
        "--no-schedules", action="store_false", dest="schedules", default=None,
        help="fire no schedules here: workers elsewhere do",
    )  # fmt: skip
    parser.add_argument("--log-level", choices=logs.LEVELS, help="the lowest level that is logged (default: info)")
    parser.add_argument("--log-format", choices=logs.FORMATS, help="the format of log lines (default: text)")
    parser.add_argument(
        "--no-metrics", action="store_false", dest="metrics", default=None, help="count nothing for /metrics"
    )


def require_extra() -> None:
    """Raise MissingExtra if the packages of the service are not installed."""
    try:
        import mainspring.service.application  # noqa: F401
    except ImportError as error:
        msg = f"the service needs more packages ({error}); install them with: pip install 'mainspring[service]'"
        raise MissingExtra(msg) from error


def settings_of(args: Namespace) -> ServiceSettings:
    from mainspring.service.settings import load_settings

    names = ("app", "store", "host", "port", "worker", "schedules", "log_level", "log_format", "metrics")
    return load_settings(args.config, **{name: getattr(args, name) for name in names})


def run_service(args: Namespace, terminal: Terminal) -> int:
    require_extra()
    settings = settings_of(args)
    is_set = "log_format" in settings.model_fields_set
    as_json = settings.log_format == "json" or (terminal.json and not is_set)
    logs.set_up(settings.log_level, as_json=as_json, final=True)
    from mainspring.service.program import Service
    from mainspring.telemetry import turn_on

    service = Service(app := application_of(settings), settings)
    use_in_logs(app.redaction)
    turn_on(app, otel=settings.otel, sentry_dsn=settings.sentry_dsn, sentry_traces=settings.sentry_traces)
    return service.run()


def application_of(settings: ServiceSettings) -> Mainspring:
    return load(settings.app) if settings.app is not None else Mainspring(settings.store)


def check_config(args: Namespace, terminal: Terminal) -> int:
    require_extra()
    from mainspring.service.settings import warnings_of

    try:
        settings = settings_of(args)
        application_of(settings)
        errors: list[str] = []
        warnings = warnings_of(settings)
    except ConfigurationError as error:
        errors, warnings = str(error).splitlines(), []
    if terminal.json:
        terminal.emit({"errors": errors, "warnings": warnings})
    else:
        for line in errors:
            terminal.say(f"error: {line}")
        for line in warnings:
            terminal.say(f"warning: {line}")
        if not errors and not warnings:
            terminal.say("the settings are fine")
    return Exit.FAILED if errors else Exit.OK
