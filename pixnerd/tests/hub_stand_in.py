"""The part of the Hub's HTTP interface that creates, uploads to and downloads from a model repository, in memory."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    files: dict[str, bytes] = {}
    requests: list[str] = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        self.requests.append(f"POST {path}")
        if path == "/api/repos/create":
            name = json.loads(body)["name"]
            self.answer({"url": f"{self.base}/user/{name}", "id": f"user/{name}", "name": f"user/{name}"})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self.answer({"files": files})
        elif "/commit/" in path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    self.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"{self.base}/user/name/commit/{COMMIT}"
            self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
        else:
            self.answer({"error": f"no {path} here"}, 404)

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.requests.append(f"{self.command} {path}")
        if path.startswith("/api/models/user/name/tree/"):
            self.answer([{"type": "file", "path": n, "size": len(b), "oid": etag(b)} for n, b in self.files.items()])
        elif path.startswith("/api/models/user/name"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer({"id": "user/name", "modelId": "user/name", "sha": COMMIT, "siblings": siblings})
        elif path.startswith("/user/name/resolve/"):
            name = path.split("/", 5)[5]
            if name in self.files:
                self.answer(self.files[name])
            else:
                self.answer({"error": "no such file"}, 404, {"X-Error-Code": "EntryNotFound"})
        else:
            self.answer({"error": f"no {path} here"}, 404)

    do_HEAD = do_GET

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, body, status: int = 200, headers: dict | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        headers = {"ETag": f'"{etag(data)}"', "X-Repo-Commit": COMMIT, "Content-Length": str(len(data))} | (
            headers or {}
        )
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *args) -> None:
        pass


def etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def hub_stand_in():
    """Yields (address, files by name, requests so far)."""
    handler = type("Handler", (Hub,), {"files": {}, "requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.files, handler.requests
    finally:
        server.shutdown()
