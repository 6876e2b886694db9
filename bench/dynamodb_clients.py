"""What a call of DynamoDB costs in CPU, by client: `python -m bench.dynamodb_clients`.

Each client gets an environment of its own under bench/.venvs, and reads and writes small items of one table on a local
server, 16 calls at a time. What counts is the processor time of the client's process: the server's is another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

from bench.roster import ENVIRONMENTS

HERE = Path(__file__).parent
CALLS, AT_ONCE, ROUNDS = 1500, 16, 3
CLIENTS = {
    "ours": ["aiohttp", "botocore", "pydantic", "cronsim", "tzdata"],
    "aiobotocore": ["aiobotocore"],
    "aiodynamo": ["aiodynamo", "aiohttp"],
    "boto3": ["boto3"],
}


def python_for(name: str, packages: list[str]) -> str:
    home = ENVIRONMENTS / f"dynamodb-{name}"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=False)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", *packages]
        subprocess.run(command, check=True)
    return str(python)


def measure(name: str, endpoint: str) -> dict[str, float]:
    python = python_for(name, CLIENTS[name])
    done = subprocess.run(
        [python, str(HERE / "dynamodb_calls.py"), name, endpoint, str(CALLS), str(AT_ONCE)],
        check=True, capture_output=True, text=True, timeout=300,
        env={
            "PATH": "/usr/bin:/bin", "PYTHONPATH": str(HERE.parent / "src"), "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true",
        },
    )  # fmt: skip
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def main() -> None:
    from tests.dynamodb import endpoint

    print(f"{'client':12} {'GetItem':>9} {'PutItem':>9}   ms of CPU per call, best of {ROUNDS}")
    rounds = [{name: measure(name, endpoint()) for name in CLIENTS} for _ in range(ROUNDS)]
    for name in CLIENTS:
        best = {kind: min(measured[name][kind] for measured in rounds) for kind in ("get", "put")}
        print(f"{name:12} {best['get']:9.3f} {best['put']:9.3f}")


if __name__ == "__main__":
    main()
