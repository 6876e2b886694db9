"""A DynamoDB server on this machine, for examples and tests: the package `ministack`, in a process of its own.

The server ends with the process that started it, in whichever way that process ends.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

START_WITHIN = 60.0  # seconds
REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}  # a local server believes any
WATCHDOG = """
import os, signal, subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "ministack"], stdin=subprocess.DEVNULL)
signal.signal(signal.SIGTERM, lambda *_: sys.stdin.close())
try:
    sys.stdin.read()  # until the process that started us ends, in whichever way
except (OSError, ValueError):
    pass
server.terminate()
server.wait()
"""


def set_keys() -> None:
    """Give this process credentials, unless it has some."""
    for name, value in KEYS.items():
        os.environ.setdefault(name, value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start() -> str:
    """Start a server and return its URL once it answers."""
    port = free_port()
    settings = {
        "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "dynamodb,dynamodbstreams",
        "LOG_LEVEL": "ERROR",
    }  # fmt: skip
    watchdog = subprocess.Popen(
        [sys.executable, "-c", WATCHDOG],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(stop, watchdog)
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + START_WITHIN
    while True:
        try:
            urlopen(f"{url}/_ministack/health", timeout=2).close()  # noqa: S310 - ours
        except (URLError, OSError):
            if watchdog.poll() is not None or time.monotonic() > end:
                raise RuntimeError("ministack did not start") from None
            time.sleep(0.05)
        else:
            return url


def stop(watchdog: subprocess.Popen[bytes]) -> None:
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    watchdog.wait()
