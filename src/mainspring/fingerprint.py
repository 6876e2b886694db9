"""The fingerprint of a failure: failures with the same cause get the same one, on every machine.

It is made of the task, the type of the error, the place in the user's code and the message without its variable parts.
It has no line numbers and no paths, so that it survives edits, other machines and other installations.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from types import CodeType, FrameType, TracebackType

LENGTH = 16  # hex digits: two of a million groups have the same one with a chance of 1 in 37 million
SEPARATOR = "."  # between a project and the fingerprint; no name of a project has it
LONGEST_TEMPLATE = 500  # characters of a message that count; what follows is often data
LONGEST_READ = 4_000  # characters of a message that are read

INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
LIBRARY = "mainspring"
PROGRAMS = frozenset({"__main__", "__mp_main__"})  # the second one: a program in a child process of its own

# A pattern must not begin within a run of the characters that it goes on with. Otherwise it would read a long word from
# each of its characters again, which stalls the worker.
LETTER = r"[^\W_]"  # or a digit
APOSTROPHE = rf"(?<={LETTER})(?<!(?<!{LETTER})[br])'(?={LETTER})"  # as in O'Brien; b'x' and r'x' begin quoted text
QUOTED = re.compile(
    rf"""(?<!{LETTER})(?<!\\)[br]?(?:"""
    # Over several lines, the closing mark must end a word, so that a stray mark does not pair with a later opening one.
    rf"""'(?:[^'\\]|\\[\s\S]|{APOSTROPHE})*+'(?!{LETTER})|'(?:[^'\\\n]|\\.)*'|"""
    rf""""(?:[^"\\\n]|\\.)*"|"(?:[^"\\]|\\[\s\S])*"(?!{LETTER})|"""
    rf"""`[^`\n]*`|`[^`]*`(?!{LETTER}))"""
)
CURLY = re.compile(
    rf"“[^“”]*”|‘(?:[^‘’]|(?<={LETTER})’(?={LETTER}))*+’|‘[^‘’]*’|«[^«»]*»|„[^„“”]*[“”]"  # noqa: RUF001
)
# Names keep their letters: room12, 30ms, S3Error. Other words of letters and digits are ids: A1B2C3, 01HZX, AB12CD.
MIXED = re.compile(r"(?<![^\W_])(?!\d++e\d++(?![^\W_]))[^\W\d_]*+\d++[^\W\d_]++\d[^\W_]*+", re.IGNORECASE)
CAPITALS = re.compile(r"(?<![^\W_])(?<!\d[.,])(?=[^\W_]{5})(?:[A-Z]++\d++[A-Z]++|\d++[A-Z]{3,}+)(?![^\W_])")

REPLACED: tuple[tuple[re.Pattern[str], str], ...] = (
    (QUOTED, "<text>"),
    (CURLY, "<text>"),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<email>"),
    (re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^\s,;)\]>]+", re.IGNORECASE), "<url>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.@%+~=-]+){2,}[\\/]?|~(?:/[\w.@%+~=-]+)+/?"), "<path>"),
    (re.compile(r"\b[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|\s?[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"\b\d\d?:\d\d(?::\d\d(?:\.\d+)?)?\b"), "<time>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])\w{16,}\b"), "<id>"),  # ids such as cus_NffrFeUfNV2Hib or ULIDs
    (MIXED, "<id>"),
    (CAPITALS, "<id>"),
    (re.compile(r"(?:(?<![A-Za-z])[+-])?\d[\d_]*(?:[.,]\d+)*(?:e[+-]?\d+)?%?", re.IGNORECASE), "<number>"),
)
REPEATED = re.compile(r"(<\w+>)(?:[\s,;|]*\1)+")
SPACES = re.compile(r"\s+")


def fingerprint(task: str, error_type: str, place: str, message: str) -> str:
    """Return the fingerprint of a failure. `place` is that of `place_of`; it may be empty."""
    parts = (task, error_type, place, template_of(message))
    return sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:LENGTH]


def of_project(known: str, project: str | None) -> str:
    """Return a fingerprint as that of a project: `acme.4f1c…`. So projects share no failure group."""
    bare = known.rpartition(SEPARATOR)[2]
    return bare if project is None else f"{project}{SEPARATOR}{bare}"


def project_in(known: str) -> str:
    """Return the project of a fingerprint; empty if it has none."""
    return known.rpartition(SEPARATOR)[0]


def template_of(message: str) -> str:
    """Return the message without what differs from one failure to the next."""
    text = message[:LONGEST_READ]
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    text = SPACES.sub(" ", REPEATED.sub(r"\1", text)).strip()
    return text[:LONGEST_TEMPLATE]


# -- the place --------------------------------------------------------------------------------------------


def place_of(error: BaseException) -> str:
    """Return `module:function` of the user's code that was innermost when the error was raised; empty if unknown.

    Of a group of exceptions, the first leaf decides. A leaf that was never raised has no place; then that of the group
    counts, which was raised by the code that collected them.
    """
    places = (place_raised(nested) for nested in reversed(path_to_leaf(error)))
    return next((place for place in places if place), "")


def leaf_of(error: BaseException) -> BaseException:
    """Return the first exception in a group that is not a group itself; of another exception, the exception."""
    return path_to_leaf(error)[-1]


def path_to_leaf(error: BaseException) -> list[BaseException]:
    """Return the exception and, of groups, those within each other, down to the first leaf.

    Leaves such as CancelledError, which only stop the code, come after all others: they are not the cause.
    """
    paths, without_cause = [[error]], [error]
    while paths:
        path = paths.pop()
        if isinstance(path[-1], BaseExceptionGroup):
            paths += [[*path, nested] for nested in reversed(path[-1].exceptions)]
        elif isinstance(path[-1], Exception):
            return path
        elif isinstance(without_cause[-1], BaseExceptionGroup):
            without_cause = path
    return without_cause


def place_raised(error: BaseException) -> str:
    frames = [frame for frame in frames_of(error.__traceback__) if not is_library(module_of(frame))]
    own = own_package(frames)
    for frame in reversed(frames):
        if is_own(frame, own):
            return named(frame)
    return named(frames[0]) if frames else ""


def frames_of(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def own_package(frames: list[FrameType]) -> str | None:
    """Return the package of the outermost code that is not Python's own: that of the handler.

    An application may itself be installed into site-packages, as in most images.
    """
    outermost = next((module_of(frame) for frame in frames if not is_standard(frame.f_code)), None)
    return None if outermost is None else outermost.partition(".")[0]


def is_own(frame: FrameType, package: str | None) -> bool:
    if is_standard(frame.f_code):
        return False
    return module_of(frame).partition(".")[0] == package or not INSTALLED.search(frame.f_code.co_filename)


def is_library(module: str) -> bool:
    return module == LIBRARY or module.startswith(f"{LIBRARY}.")


@lru_cache(maxsize=1024)
def is_standard(code: CodeType) -> bool:
    """Return whether the code is of Python itself, or was made without a file, as those of dataclasses."""
    name = code.co_filename
    return name.startswith("<frozen") or (name.startswith(STANDARD) and not INSTALLED.search(name))


def module_of(frame: FrameType) -> str:
    """Return the name of the frame's module. Of a program, return the name under which others would import it."""
    name = str(frame.f_globals.get("__name__") or "")
    if name not in PROGRAMS:
        return name
    spec = getattr(frame.f_globals.get("__spec__"), "name", None)
    return spec or re.split(r"[/\\]", frame.f_code.co_filename)[-1].removesuffix(".py")


def named(frame: FrameType) -> str:
    return f"{module_of(frame)}:{frame.f_code.co_qualname}"
