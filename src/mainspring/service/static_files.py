"""Files for browsers: `/static/<name>`, and `/static/<stem>.<hash>.<ending>`, which never changes."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mainspring.service.cross_origin import STATIC_PATHS
from mainspring.service.problems import Problem
from mainspring.service.requests import Router, answer

FOLDER = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
HASH_LENGTH = 12
FOR_EVER = "public, max-age=31536000, immutable"
FOR_MINUTES = "public, max-age=300, stale-while-revalidate=86400"
INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    packed: bytes  # the same, compressed by gzip
    type: str
    hash: str
    keep: str  # for how long a browser may use it without asking

    @property
    def etag(self) -> str:
        return f'"{self.hash}"'


@cache
def files() -> dict[str, StaticFile]:
    """Return all files, each under its name and under the name with its hash."""
    found: dict[str, StaticFile] = {}
    for path in sorted(FOLDER.iterdir()):
        body = path.read_bytes()
        short = hashlib.sha256(body).hexdigest()[:HASH_LENGTH]
        packed = gzip.compress(body, mtime=0)
        kind = TYPES[path.suffix]
        found[path.name] = StaticFile(body, packed, kind, short, FOR_MINUTES)
        found[f"{path.stem}.{short}{path.suffix}"] = StaticFile(body, packed, kind, short, FOR_EVER)
    return found


def path_of(name: str) -> str:
    """Return the path of a file that may be kept for ever."""
    stem, _, ending = name.rpartition(".")
    return f"{STATIC_PATHS}{stem}.{files()[name].hash}.{ending}"


def integrity_of(name: str) -> str:
    """Return what the attribute `integrity` of a script element says."""
    return f"sha384-{base64.b64encode(hashlib.sha384(files()[name].body).digest()).decode()}"


async def serve_file(request: Request) -> Response:
    name = request.path_params["name"]
    if name == INDEX:
        return answer(index(request.scope.get("root_path", "")))
    file = files().get(name)
    if file is None:
        lists = f"{request.scope.get('root_path', '')}{STATIC_PATHS}{INDEX}"
        raise Problem("not_found", f"there is no file {name!r}; {lists} lists them")
    headers = {"cache-control": file.keep, "etag": file.etag, "vary": "accept-encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, headers={**headers, "content-encoding": "gzip"}, media_type=file.type)
    return Response(file.body, headers=headers, media_type=file.type)


def index(root: str) -> dict[str, dict[str, str]]:
    """Return the path of each file, from where the service is mounted, and what its script element needs."""
    names = [path.name for path in sorted(FOLDER.iterdir())]
    return {name: {"path": root + path_of(name), "integrity": integrity_of(name)} for name in names}


router = Router()
router.routes.append(Route(f"{STATIC_PATHS}{{name}}", serve_file))
