"""`mainspring keys …`: make keys for encryption, see which are in use, and seal everything with a new one."""

from __future__ import annotations

from argparse import Namespace

from mainspring.cli.exits import Exit
from mainspring.cli.loading import opened
from mainspring.cli.parser import Commands, add_command, add_group, add_store_options
from mainspring.cli.terminal import Terminal

GENERATE = """\
Prints a new key as `id:base64`, for MAINSPRING_ENCRYPTION_KEYS. Keep a copy in a safe place: without the key, what was
encrypted with it is lost."""
ROTATE = """\
Encrypts everything in the store with the active key: the first one of MAINSPRING_ENCRYPTION_KEYS. Values that were
never encrypted are encrypted too. It may run beside workers, and may be repeated. Before it, make the new key the
active one in every process, and leave the old ones behind it. After it, remove the old keys."""


def add_commands(commands: Commands) -> None:
    keys = add_group(commands, "keys", "make, list and change encryption keys")
    generate = add_command(keys, "generate", generate_key, "make a new key", GENERATE)
    generate.add_argument("id", metavar="ID", help="a name for the key, such as 2027-01")
    add_store_options(add_command(keys, "list", list_keys, "list the keys that the store needs"))
    add_store_options(add_command(keys, "rotate", rotate_keys, "encrypt everything with the active key", ROTATE))


def generate_key(args: Namespace, terminal: Terminal) -> int:
    from mainspring.encryption import check_id, new_key

    text = f"{check_id(args.id)}:{new_key()}"
    if terminal.json:
        terminal.emit({"key": text})
    else:
        terminal.say(text)
    return Exit.OK


def list_keys(args: Namespace, terminal: Terminal) -> int:
    from mainspring.stores.encrypted import bare, keys_of, needed_keys

    with opened(args) as app:
        needed = sorted(app.run(needed_keys(bare(app.store))))
        keys = keys_of(app.store)
    active = None if keys is None else keys.active
    if terminal.json:
        terminal.emit({"needed": needed, "active": active})
        return Exit.OK
    for name in needed:
        terminal.say(f"{name}{'  (active)' if name == active else ''}")
    if not needed:
        terminal.note("nothing in this store is encrypted")
    return Exit.OK


def rotate_keys(args: Namespace, terminal: Terminal) -> int:
    from mainspring.key_rotation import Rotation, rotate

    def show(rotation: Rotation) -> None:
        if not terminal.json:
            terminal.note(f"{rotation.examined:,} examined, {rotation.resealed:,} values encrypted again")

    with opened(args) as app:
        done = app.run(rotate(app.store, show))
    if terminal.json:
        names = {"unreadable": sorted(done.unreadable), "removed": done.removed}
        terminal.emit({"examined": done.examined, "resealed": done.resealed, **names})
    else:
        terminal.say(f"encrypted {done.resealed:,} values with the active key")
        if done.removed:
            terminal.say(f"no longer needed: {', '.join(done.removed)}")
    if done.unreadable:
        terminal.complain(f"some values could not be read; their keys are: {', '.join(sorted(done.unreadable))}")
        return Exit.FAILED
    return Exit.OK
