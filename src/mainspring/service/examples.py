"""The examples of the OpenAPI document: requests that were sent to the service, and what it answered.

`make examples` records them again (tests/service/recording.py), so they are never what the service would not say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

FILE = "examples.json"


def load_examples() -> dict[str, Any]:
    """Return what was recorded of each operation, by method and path."""
    data: dict[str, Any] = json.loads(files(__package__).joinpath(FILE).read_text("utf-8"))
    return data


def add_examples(operation: dict[str, Any], recorded: Mapping[str, Any]) -> None:
    """Add the recorded body and answers to an operation."""
    if "body" in recorded:
        operation["requestBody"]["content"]["application/json"]["example"] = recorded["body"]
    for media, example in recorded.get("other_bodies", {}).items():
        operation["requestBody"]["content"][media]["example"] = example
    for status, answers in recorded.get("answers", {}).items():
        for media, example in answers.items():
            content = operation["responses"].get(status, {}).get("content", {})
            if media in content:
                content[media]["example"] = example
