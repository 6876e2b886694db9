"""`mainspring serve` and `mainspring config check`."""

from __future__ import annotations

import json
import os
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from mainspring.app import Mainspring
from mainspring.cli import logs
from mainspring.cli.exits import Exit
from mainspring.cli.loading import load
from mainspring.cli.parser import Commands, Parser, add_command, add_group
from mainspring.cli.terminal import Terminal
from mainspring.errors import ConfigurationError, MissingExtra
from mainspring.log_redaction import use_in_logs

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from mainspring.service.settings import ServiceSettings

SERVE = """\
Serves the HTTP API and runs jobs, in one process, until SIGTERM or Ctrl-C. Without an application it knows no tasks of
its own: jobs then run on workers elsewhere, in Python or through leases. Settings come from these options, from the
environment (MAINSPRING_PORT, …) and from mainspring.toml, in this order."""

FLAGS_OFF = {
    "worker": "run no jobs here: workers elsewhere do",
    "schedules": "fire no schedules here: workers elsewhere do",
    "metrics": "count nothing for /metrics",
}
"""What the options mean that turn a setting off."""
METAVARS = {
    "store": "URL",
    "host": "ADDRESS",
    "allowed_hosts": "NAME,…",
    "queues": "QUEUE,…",
    "outgoing_allow": "NETWORK,…",
    "proxy_header": "NAME",
    "proxy_addresses": "ADDRESS,…",
    "proxy_scopes": "SCOPE,…",
    "redact": "RULE,…",
    "sentry_dsn": "URL",
}


def add_commands(commands: Commands) -> None:
    serve = add_command(commands, "serve", run_service, "serve the HTTP API, and run jobs", SERVE)
    add_setting_options(serve)
    config = add_group(commands, "config", "check the settings of the service")
    add_setting_options(add_command(config, "check", check_config, "report errors and warnings about the settings"))


def add_setting_options(parser: Parser) -> None:
    """Add an option for each setting of the service."""
    parser.add_argument(
        "app", nargs="?", metavar="MODULE:ATTRIBUTE",
        help="the application, found from the current directory: shop.jobs:app (or MAINSPRING_APP)",
    )  # fmt: skip
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML (default: ./mainspring.toml)")
    for name, field in settings_model().model_fields.items():
        if name != "app":
            add_setting_option(parser, name, field)


def add_setting_option(parser: Parser, name: str, field: FieldInfo) -> None:
    option, meaning = name.replace("_", "-"), field.description or ""
    if field.default is True:
        parser.add_argument(f"--no-{option}", action="store_false", dest=name, default=None, help=FLAGS_OFF[name])
    elif field.default is False:
        parser.add_argument(f"--{option}", action="store_true", default=None, help=meaning)
    else:
        default = shown(field.default)
        help_text = f"{meaning} (default: {default})" if default else meaning
        parser.add_argument(f"--{option}", help=help_text, **form_of(name, field))


def form_of(name: str, field: FieldInfo) -> dict[str, Any]:
    """Return how the value of an option is read."""
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    words = [word for kind in kinds for word in (get_args(kind) if get_origin(kind) is Literal else [kind])]
    if all(isinstance(word, str) for word in words):
        return {"choices": words}
    if get_origin(field.annotation) is dict:
        return {"type": parse_object, "metavar": "JSON"}
    if get_origin(field.annotation) is tuple:
        return {"type": parse_list, "metavar": METAVARS.get(name, "TEXT,…")}
    number = next((kind for kind in (int, float) if kind in kinds), None)
    return {"metavar": METAVARS.get(name, "TEXT")} if number is None else {"type": number, "metavar": "N"}


def shown(default: Any) -> str:
    """Return a default for the help of an option; nothing if there is none."""
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default) if default not in (None, {}) else ""


def parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        msg = f'{text!r} is not a JSON object, such as {{"login": ["/code"]}}'
        raise ArgumentTypeError(msg)
    return found


def settings_model() -> type[ServiceSettings]:
    try:
        from mainspring.service.settings import ServiceSettings
    except ImportError as error:
        raise missing(error) from error
    return ServiceSettings


def require_extra() -> None:
    """Raise MissingExtra if the packages of the service are not installed."""
    try:
        import mainspring.service.application  # noqa: F401
    except ImportError as error:
        raise missing(error) from error


def missing(error: ImportError) -> MissingExtra:
    return MissingExtra(
        f"the service needs more packages ({error}); install them with: pip install 'mainspring[service]'"
    )


def settings_of(args: Namespace) -> ServiceSettings:
    from mainspring.service.settings import load_settings

    return load_settings(args.config, **{name: getattr(args, name) for name in settings_model().model_fields})


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
    from mainspring.service.settings import unknown_variables, warnings_of

    errors, warnings = [], unknown_variables(os.environ)
    try:
        settings = settings_of(args)
        application_of(settings)
        warnings = [*warnings_of(settings), *warnings]
    except ConfigurationError as error:
        errors = str(error).splitlines()
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
