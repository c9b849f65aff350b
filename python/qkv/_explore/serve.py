"""The explorer's page with a model behind it (docs/explorer-file.md). It answers this machine only: on 127.0.0.1, under an address that holds a
random token, to requests whose Host and Origin are its own, so that no other page in the same browser can use it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .cuts import require_instead
from .file import finite, page_of

NAMES = ("cut", "generate", "page")
_BODY = 1 << 20  # bytes of a request
_SECONDS = 30  # for a request to arrive
_TOKENS = 200  # generated at once
_PAGES = 16  # kept beside the first
_HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip


class Wrong(Exception):
    """What a request asks for and cannot get: a status and one sentence."""


def _asked(body: bytes) -> dict[str, Any]:
    """The members of a request, each of its own type."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Wrong(400, "the body must be JSON") from None
    types = {"text": str, "cut": list, "with": str, "from": str, "tokens": int}
    if not isinstance(given, dict) or given.keys() - types.keys():
        raise Wrong(400, f"the body must be an object with some of {', '.join(types)}")
    for name, value in given.items():
        if type(value) is not types[name]:
            raise Wrong(400, f"{name} must be a {'number' if types[name] is int else 'list' if types[name] is list else 'text'}")
    for pair in given.get("cut", ()):
        if type(pair) is not list or [type(n) for n in pair] != [int, int]:
            raise Wrong(400, "cut must be a list of [layer, head]")
    if not 1 <= given.get("tokens", 1) <= _TOKENS:
        raise Wrong(400, f"tokens must lie in 1..{_TOKENS}")
    return given


class Pages:
    """What the server answers. One request computes at a time, and nobody else on its model meanwhile (alone_with)."""

    def __init__(self, first: Any) -> None:
        self.lock = threading.Lock()
        self.explored = {0: first}
        self.html = {0: self._html(first)}
        self.last = 0

    @staticmethod
    def _html(one: Any) -> bytes:
        json, tensors = one.captures._made()
        return page_of({**json, "live": {"names": list(NAMES)}}, tensors).encode()

    def answer(self, name: str, number: int, asked: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            own = self.explored[number]
            other, heads, instead = asked.get("from"), [tuple(pair) for pair in asked.get("cut", ())], asked.get("with", "zero")
            require_instead(instead, other)
            if ("text" in asked or other is not None) and own.tokenizer is None:
                raise ValueError("a text needs a tokenizer, and this model came without one")
            if name == "generate":
                one, tokens = own.read(asked["text"]) if "text" in asked else own, asked.get("tokens", 20)
                without = one.generate(tokens, heads, instead, other=other) if heads else None
                return {"whole": one.generate(tokens), "cut": without}
            if name == "cut":
                one = own.read(asked["text"]) if "text" in asked else own
                if not heads and not one.whole.said:
                    raise ValueError("no head is cut, and this model has no next token to show: cut one")
                made = one.cut(heads, instead, other=other, keep=False) if heads else {"whole": one.whole.said, "cut": None}
                ids, names = one.whole.ids.get("decoder", one.whole.ids.get("")), one.captures.names or str
                return {**made, "tokens": [names(int(n)) for n in ids[0]]}
            one = own.read(asked.get("text"))
            one.whole.numbers = dict(own.whole.numbers) if "text" not in asked else {}
            one.captures.title = own.captures.title
            if heads:
                one.cut(heads, instead, other=other)
            self.last += 1
            self.explored[self.last], self.html[self.last] = one, self._html(one)
            for old in sorted(self.html)[1:-_PAGES]:
                del self.explored[old], self.html[old]
            return {"page": self.last}


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _SECONDS
    server_version, sys_version = "qkv", ""

    def do_GET(self) -> None:
        self._reply(self._page)

    def do_POST(self) -> None:
        self._reply(self._computed)

    def _reply(self, made: Any) -> None:
        try:
            self._require_own()
            status, kind, body = 200, *made()
        except Wrong as wrong:
            status, kind, body = wrong.args[0], "application/json", json.dumps({"error": wrong.args[1]}).encode()
        except (ValueError, TypeError, LookupError, NotImplementedError) as error:  # what the library and the model say of a request
            status, kind, body = 400, "application/json", json.dumps({"error": " ".join(str(error).split())[:600]}).encode()
        except (RuntimeError, MemoryError) as error:
            status, kind, body = 500, "application/json", json.dumps({"error": f"it failed: {type(error).__name__}"}).encode()
        self.close_connection = True  # what is left of a body that was refused is no request
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _require_own(self) -> None:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise Wrong(403, "this server answers to its own address only")
        if any(origin != f"http://{hosts[0]}" for origin in self.headers.get_all("Origin") or []):
            raise Wrong(403, "this server answers its own page only")

    def _asked_for(self) -> tuple[int, str]:
        """The number of a page, and what follows it. A wrong token and a wrong path are answered alike."""
        parts = self.path.split("/")
        if len(parts) < 3 or parts[0] or not hmac.compare_digest(parts[1].encode(), self.server.token.encode()):
            raise Wrong(404, "there is nothing at this address")
        number, name = (parts[2], parts[3]) if len(parts) == 4 else ("0", parts[2])
        if len(parts) > 4 or not number.isascii() or not number.isdigit() or len(number) > 9 or int(number) not in self.server.pages.html:
            raise Wrong(404, "there is nothing at this address")
        return int(number), name

    def _page(self) -> tuple[str, bytes]:
        number, name = self._asked_for()
        if name:
            raise Wrong(405 if name in NAMES else 404, "there is nothing to read at this address")
        return "text/html; charset=utf-8", self.server.pages.html[number]

    def _computed(self) -> tuple[str, bytes]:
        number, name = self._asked_for()
        if name not in NAMES:
            raise Wrong(404 if name else 405, "nothing is computed at this address")
        if self.headers.get_content_type() != "application/json":
            raise Wrong(415, "the body must be of type application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in self.headers:
            raise Wrong(411, "the body needs a Content-Length")
        if len(length) > 9 or int(length) > _BODY:
            raise Wrong(413, f"the body has at most {_BODY} bytes")
        try:
            body = self.rfile.read(int(length))
        except TimeoutError:
            raise Wrong(408, "the body did not arrive") from None
        answer = self.server.pages.answer(name, number, _asked(body))
        if name == "page":
            answer = {"page": f"/{self.server.token}/{answer['page']}/"}
        return "application/json", json.dumps(finite(answer), allow_nan=False).encode()

    def log_message(self, *_: Any) -> None:
        """Nothing: an address in a log would hold the token."""


class Server(ThreadingHTTPServer):
    """address: of the page."""

    def __init__(self, first: Any, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.token, self.pages = secrets.token_urlsafe(24), Pages(first)
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.address = f"http://127.0.0.1:{self.server_port}/{self.token}/"
        self._links: list[tuple[socket.socket, threading.Thread]] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each connection has a thread, which server_close waits for."""
        thread = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._links = [(request, thread), *(link for link in self._links if link[1].is_alive())]
        thread.start()

    def server_close(self) -> None:
        """Ends connections when they have their answer: a thread that computes while Python ends would abort the process."""
        super().server_close()
        for request, thread in self._links:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RD)
            thread.join()

    def handle_error(self, *_: Any) -> None:
        """A browser that went away is no error."""

    def close(self) -> None:
        """No request is answered any more."""
        self.shutdown()
        self.server_close()


def serve(first: Any, port: int, *, forever: bool) -> Server:
    """first: qkv.explore's. forever: until Ctrl-C; otherwise in a thread of its own, until close()."""
    server = Server(first, port)
    if not forever:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server
    print(f"{server.address}\nCtrl-C ends it", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return server
