"""Files for browsers: who may load them, and for how long browsers keep them."""

from __future__ import annotations

import base64
import gzip
import hashlib

from mainspring import Mainspring
from mainspring.service.static_files import FOLDER, files, integrity_of, path_of
from tests.service.serving import Client, serving
from tests.service.test_security import mounted

SCRIPT = (FOLDER / "progress.js").read_text("utf-8")


async def test_any_page_may_load_a_script_without_a_token(app: Mainspring) -> None:
    async with serving(app, tokens="required") as client:
        found = await client.get("/static/progress.js", origin="https://shop.example", sec_fetch_site="cross-site")
        assert (found.status, found.text) == (200, SCRIPT)
        assert found.headers["content-type"] == "text/javascript; charset=utf-8"
        assert found.headers["access-control-allow-origin"] == "*"
        assert found.headers["cross-origin-resource-policy"] == "cross-origin"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert (await client.get("/static/progress.js", host="evil.example")).code == "host_not_allowed"


async def test_a_browser_asks_again_only_for_what_may_change(client: Client) -> None:
    plain, named = await client.get("/static/progress.js"), await client.get(path_of("progress.js"))
    assert "immutable" not in plain.headers["cache-control"]
    assert "immutable" in named.headers["cache-control"]
    again = await client.get("/static/progress.js", if_none_match=plain.headers["etag"])
    assert (again.status, again.text) == (304, "")


async def test_what_is_not_a_file_is_not_found(client: Client) -> None:
    for path in ("/static/nope.js", "/static/..%2Fguard.py", "/static/progress.000000000000.js"):
        assert (await client.get(path)).code == "not_found"
    assert (await client.send("POST", "/static/progress.js")).code == "method_not_allowed"


async def test_the_index_names_the_lasting_path_and_the_hash(client: Client) -> None:
    entry = (await client.get("/static/index.json")).data["progress.js"]
    assert (await client.get(entry["path"])).text == SCRIPT
    digest = base64.b64encode(hashlib.sha384(SCRIPT.encode()).digest()).decode()
    assert entry["integrity"] == integrity_of("progress.js") == f"sha384-{digest}"


async def test_the_paths_of_a_mounted_service_begin_with_its_mount(app: Mainspring) -> None:
    async with mounted(app) as client:
        root = client.url[client.url.index("/", len("http://")) :]
        entry = (await client.get("/static/index.json")).data["progress.js"]
        assert entry["path"] == root + path_of("progress.js")
        assert f"{root}/static/index.json lists them" in (await client.get("/static/nope.js")).data["detail"]


def test_the_script_is_small_and_needs_nothing_that_a_strict_policy_forbids() -> None:
    assert gzip.decompress(files()["progress.js"].packed).decode() == SCRIPT
    assert len(files()["progress.js"].packed) < 2_300
    for forbidden in ("innerHTML", "eval(", "new Function", "document.write", ".style", "import "):
        assert forbidden not in SCRIPT
