"""`mainspring metrics dashboard` and `mainspring metrics alerts`: files for Grafana and Prometheus."""

from __future__ import annotations

from argparse import Namespace
from importlib.resources import files

from mainspring.cli.exits import Exit
from mainspring.cli.parser import Commands, add_command, add_group
from mainspring.cli.terminal import Terminal

DASHBOARD, ALERTS = "grafana.json", "alerts.yml"


def add_commands(commands: Commands) -> None:
    group = add_group(commands, "metrics", "print a dashboard for Grafana, and alert rules for Prometheus")
    add_command(group, "dashboard", show_dashboard, "print a dashboard; import it in Grafana as JSON")
    add_command(group, "alerts", show_alerts, "print alert rules; name the file in Prometheus' rule_files")


def show_dashboard(args: Namespace, terminal: Terminal) -> int:
    del args
    return show(DASHBOARD, terminal)


def show_alerts(args: Namespace, terminal: Terminal) -> int:
    del args
    return show(ALERTS, terminal)


def show(file: str, terminal: Terminal) -> int:
    """Print a file of the package. It needs no extra: the file is the same whether metrics are installed or not."""
    terminal.say((files("mainspring") / "metrics" / file).read_text("utf-8").rstrip("\n"))
    return Exit.OK
