"""`mainspring tokens …`: create, list and revoke tokens for the HTTP API."""

from __future__ import annotations

from argparse import Namespace

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened, opened_to_fill
from mainspring.cli.moments import parse_when
from mainspring.cli.parser import (
    Commands,
    add_actor_options,
    add_command,
    add_command_about,
    add_group,
    add_store_options,
    parse_names,
)
from mainspring.cli.serve import require_extra
from mainspring.cli.table import Column
from mainspring.cli.terminal import Terminal
from mainspring.json_data import plain
from mainspring.services import whoami

COLUMNS = [
    Column("TOKEN"),
    Column("NAME", least=8),
    Column("SCOPES", least=8),
    Column("QUEUES", least=8),
    Column("CREATED"),
    Column("EXPIRES"),
    Column("LAST USED"),
]
CREATE = """\
Prints the token, once: the store keeps only a hash of it. Send it as `Authorization: Bearer msk_…`. Scopes: read,
enqueue, lease (workers in other languages), operate (change jobs, queues and schedules), automate, admin. With
--project or --queues, it is refused wherever it could see or change more than that."""


def add_commands(commands: Commands) -> None:
    tokens = add_group(commands, "tokens", "create, list and revoke tokens for the HTTP API")
    create = add_command_about(
        tokens, "create", create_token, "create a token", CREATE, what="what the token is for", by="NAME"
    )
    create.add_argument(
        "--scope",
        action="extend",
        type=parse_names,
        required=True,
        metavar="SCOPE[,…]",
        help="what it allows (required)",
    )
    create.add_argument(
        "--expires", type=parse_when, metavar="WHEN", help="when it ends: a time, or 30d (default: never)"
    )
    create.add_argument("--project", metavar="NAME", help="it sees and changes what belongs to this project only")
    create.add_argument(
        "--queues",
        action="extend",
        type=parse_names,
        default=[],
        metavar="QUEUE[,…]",
        help="it sees and changes these queues only; mail/* are all that begin with mail/",
    )
    create.add_argument("--actor", help="who, for the audit log (default: your account and machine)")
    add_store_options(add_command(tokens, "list", list_tokens, "list all tokens"))
    revoke = add_command_about(tokens, "revoke", revoke_token, "revoke a token", what="the id of the token: msk_<ID>_…")
    add_actor_options(revoke)


def use_settings(args: Namespace) -> None:
    """Use the store of the service, which its settings name, unless the command names one itself."""
    require_extra()
    from mainspring.service.settings import load_settings

    settings = load_settings(app=args.app, store=args.store)
    if settings.app is not None:
        args.app = settings.app
    elif "store" in settings.model_fields_set:
        args.store = settings.store


def create_token(args: Namespace, terminal: Terminal) -> int:
    use_settings(args)
    from mainspring.service.tokens import Tokens

    with opened_to_fill(args) as app:
        expires_at = args.expires and args.expires.after(app.now())
        made = Tokens(app.store).create(
            args.name,
            args.scope,
            actor=args.actor or whoami(),
            expires_at=expires_at,
            project=args.project,
            queues=args.queues,
        )
        token, text = app.run(made)
    terminal.redaction = None  # the token is shown once
    if terminal.json:
        shown = {"project": token.project, "queues": list(token.queues)}
        terminal.emit({"token": text, "id": token.id, "scopes": sorted(token.scopes), **shown})
    else:
        terminal.say(text)
        terminal.note("keep it: it is not shown again")
    return Exit.OK


def list_tokens(args: Namespace, terminal: Terminal) -> int:
    use_settings(args)
    from mainspring.service.tokens import Tokens

    with opened(args) as app:
        found = app.run(Tokens(app.store).list())
    if terminal.json:
        terminal.emit({"tokens": [token.to_data() for token in found]})
    elif found:
        rows = [
            [
                token.id,
                token.name,
                ",".join(sorted(token.scopes)),
                ",".join(token.within) or "all",
                plain(token.created_at),
                plain(token.expires_at) or "never",
                plain(token.last_used) or "not in 400 days",
            ]
            for token in found
        ]
        terminal.table(COLUMNS, rows)
    else:
        terminal.note("no tokens")
    return Exit.OK


def revoke_token(args: Namespace, terminal: Terminal) -> int:
    use_settings(args)
    from mainspring.service.tokens import Tokens

    token_id = args.id.split("_")[1] if args.id.startswith("msk_") else args.id
    with opened(args) as app:
        app.run(Tokens(app.store).revoke(token_id, actor=args.actor or whoami(), reason=args.reason))
    if terminal.json:
        terminal.emit({"revoked": token_id})
    else:
        terminal.say(f"revoked {token_id}; services accept it for up to five more seconds")
    return Exit.OK
