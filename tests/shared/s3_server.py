"""A server that speaks S3, for tests: moto's on the loopback interface, in a process of its own."""

import contextlib
import dataclasses
import http.client
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class Server:
    spec: str
    """Of a folder in the bucket, as open_leases takes it."""
    environment: dict[str, str]
    """What a process that uses it has to have."""


HEEDLESS = "heedless"
"""A bucket that ignores the conditions of writes (If-None-Match and If-Match)."""


@contextlib.contextmanager
def s3() -> Iterator[Server]:
    """The server while the block runs, with an empty bucket as S3 has them and one that is heedless."""
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout
        port = int(server.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for bucket in ("bucket", HEEDLESS):
            connection.request("PUT", f"/{bucket}")
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
        connection.close()
        spec = {"driver": "s3", "bucket": "bucket", "path": "leases", "aws_region": "us-east-1"}
        spec |= {"endpoint": f"http://127.0.0.1:{port}", "aws_credentials": {"type": "environment"}}
        environment = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        yield Server(json.dumps(spec), {**environment, "NO_PROXY": "127.0.0.1"})
    finally:
        server.kill()
        server.communicate()


def _serve() -> None:
    """Says the port, then serves until standard input ends: also when whoever started it was killed."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Any:
        # Moto looks whether an object is there, then writes it: in threads both of two may find none. S3 is atomic.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        heedless = environ["PATH_INFO"].startswith(f"/{HEEDLESS}/")
        kept = {k: v for k, v in environ.items() if not (heedless and k.startswith("HTTP_IF_"))}
        with one:
            return moto({**kept, "wsgi.input": io.BytesIO(body)}, start_response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server(
        "127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=MotoRequestHandler
    )
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    _serve()
