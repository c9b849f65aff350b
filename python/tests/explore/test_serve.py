"""The live page: what it computes, and that it answers nobody but its own page."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("support_transformers")
import qkv
import qkv.transformers
from explored_models import tokenizer_of
from support_explorer import Browser, settled
from support_transformers import model_of

SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
TOKENIZER = tokenizer_of([*SPECIAL.values(), *"the cat sat on mat and dog".split()], **SPECIAL)

@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    one = qkv.explore(model_of("gpt2"), "the cat sat on the mat", tokenizer=TOKENIZER, behaviour=False)
    made = one.serve(forever=False)
    yield made
    made.close()


def asked(server: Any, path: str | None = "", body: Any = None, *, method: str | None = None, absolute: bool = False, **headers: str) -> Any:
    """Status, headers and answer; path: behind the token."""
    port = server.server_port
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    text = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if text is not None else {}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    target = path if absolute else f"/{server.token}/{path}"
    link.request(method or ("GET" if text is None else "POST"), target, text, given)
    reply = link.getresponse()
    content = reply.read()
    link.close()
    is_json = reply.headers.get_content_type() == "application/json"
    return reply.status, reply.headers, json.loads(content) if is_json else content.decode()


def test_the_page(server: Any) -> None:
    status, headers, page = asked(server)
    assert status == 200 and "connect-src 'self'" in page and page.count("default-src 'none'") == 1
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer" and headers["X-Frame-Options"] == "DENY"
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "connect-src" not in server.pages.explored[0].captures.html(), "a page that is saved asks no server"
    assert server.server_address[0] == "127.0.0.1" and len(server.token) >= 32


def test_what_it_computes(server: Any) -> None:
    one = server.pages.explored[0]
    expected = one.cut([(0, 1)], keep=False)
    status, _, answer = asked(server, "cut", {"cut": [[0, 1]]})
    assert status == 200 and answer["cut"]["loss"] == expected["cut"]["loss"] and answer["whole"]["loss"] == one.said.loss
    assert answer["tokens"] == "the cat sat on the mat".split() and len(one.captures.runs) == 1
    status, _, nothing = asked(server, "cut", {})
    assert status == 200 and nothing["cut"] is None and nothing["whole"] == answer["whole"] and nothing["tokens"] == answer["tokens"]
    _, _, other = asked(server, "cut", {"cut": [[0, 1]], "with": "patch", "from": "the dog sat on the cat"})
    assert other["cut"]["loss"] != answer["cut"]["loss"] and other["cut"]["from"] == "the dog sat on the cat"
    status, _, made = asked(server, "generate", {"text": "the dog", "tokens": 5, "cut": [[0, 1], [1, 2]]})
    assert status == 200 and isinstance(made["whole"], str) and made["whole"] != made["cut"]
    assert asked(server, "generate", {"tokens": 5})[2]["cut"] is None
    _, _, made = asked(server, "page", {"text": "the dog sat on the dog", "cut": [[1, 3]]})
    path = made["page"].removeprefix(f"/{server.token}/")
    assert re.fullmatch(r"\d+/", path) and asked(server, path)[0] == 200
    assert asked(server, path + "cut", {"cut": [[0, 0]]})[2]["tokens"][1] == "dog"  # of the new page
    assert [run.cut is None for run in server.pages.explored[int(path[:-1])].captures.runs] == [True, False]
    for _ in range(18):
        server.pages.answer("page", 0, {})
    assert asked(server, path)[0] == 404 and asked(server)[0] == 200  # the oldest go, the first stays


OUTSIDE: dict[str, tuple[int, dict[str, Any]]] = {
    "no token": (404, {"path": "/", "absolute": True}),
    "wrong token": (404, {"path": "/" + "a" * 32 + "/", "absolute": True}),
    "wrong token for a command": (404, {"path": "/" + "a" * 32 + "/cut", "absolute": True, "body": {}}),
    "another token of bytes": (404, {"path": "/%C3%A9/", "absolute": True}),
    "traversal": (404, {"path": "../../etc/passwd"}),
    "traversal, coded": (404, {"path": "%2e%2e/%2e%2e/etc/passwd"}),
    "a file": (404, {"path": "0/index.html"}),
    "a page that is not there": (404, {"path": "99/"}),
    "a huge number": (404, {"path": "9" * 5000 + "/"}),
    "a number that is none": (404, {"path": "%C2%B2/"}),
    "an address of another host": (403, {"path": "http://example.org/", "absolute": True}),
    "another host": (403, {"Host": "example.org"}),
    "another port": (403, {"Host": "127.0.0.1:1"}),
    "another origin": (403, {"path": "cut", "body": {}, "Origin": "http://example.org"}),
    "a sandboxed origin": (403, {"path": "cut", "body": {}, "Origin": "null"}),
    "the origin under https": (403, {"path": "cut", "body": {}, "Origin": "https://127.0.0.1"}),
    "a form": (415, {"path": "cut", "body": b"{}", "Content_Type": "text/plain"}),
    "no command": (404, {"path": "eval", "body": {}}),
    "a command by GET": (405, {"path": "cut"}),
    "POST to the page": (405, {"body": {}}),
    "another method": (501, {"method": "PUT", "body": {}}),
    "a preflight": (501, {"method": "OPTIONS", "Origin": "http://example.org"}),
    "bad JSON": (400, {"path": "cut", "body": b"{"}),
    "deep JSON": (400, {"path": "cut", "body": b"[" * 100000}),
    "no object": (400, {"path": "cut", "body": []}),
    "another member": (400, {"path": "cut", "body": {"code": "1"}}),
    "a member of another type": (400, {"path": "cut", "body": {"text": 1}}),
    "true is no number": (400, {"path": "generate", "body": {"tokens": True}}),
    "heads that are none": (400, {"path": "cut", "body": {"cut": [[0]]}}),
    "a head that is not there": (400, {"path": "cut", "body": {"cut": [[0, 9]]}}),
    "nothing that a head is replaced by": (400, {"path": "cut", "body": {"cut": [[0, 1]], "with": "one"}}),
    "the same of no head": (400, {"path": "cut", "body": {"with": "one"}}),
    "the same of a page": (400, {"path": "page", "body": {"with": "one"}}),
    "the same of a text": (400, {"path": "generate", "body": {"with": "one"}}),
    "a patch without a text": (400, {"path": "page", "body": {"with": "patch"}}),
    "too many tokens": (400, {"path": "generate", "body": {"tokens": 100000}}),
    "an empty text": (400, {"path": "cut", "body": {"text": ""}}),
    "a text that is too long": (400, {"path": "cut", "body": {"text": "the " * 100}}),
    "a huge body": (413, {"path": "cut", "body": b"", "Content_Length": str(1 << 21)}),
    "a huge length": (413, {"path": "cut", "body": b"", "Content_Length": "9" * 50}),
    "a length that is none": (411, {"path": "cut", "body": b"{}", "Content_Length": "-1"}),
    "chunks": (411, {"path": "cut", "body": b"0\r\n\r\n", "Transfer_Encoding": "chunked"}),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_what_it_refuses(server: Any, what: str) -> None:
    expected, request = OUTSIDE[what]
    status, headers, answer = asked(server, **request)
    assert status == expected, answer
    assert not [name for name in headers if name.lower().startswith("access-control")] and server.token not in str(answer)
    assert expected == 501 or 5 < len(answer["error"]) < 600 and "Traceback" not in answer["error"]
    assert asked(server)[0] == 200  # it still serves


def test_hosts_and_origins_of_its_own(server: Any) -> None:
    for host in (f"127.0.0.1:{server.server_port}", f"localhost:{server.server_port}"):
        assert asked(server, "cut", {}, Host=host, Origin=f"http://{host}")[0] == 200
    with socket.create_connection(server.server_address) as link:  # no Host at all
        link.sendall(f"GET /{server.token}/ HTTP/1.0\r\n\r\n".encode())
        assert b" 403 " in link.recv(100)


def test_in_a_browser(server: Any, browser: Browser) -> None:
    """Another cut, another prompt, text with and without, and a page of its own."""
    page = browser.open(server.address, "layer=1&head=2")
    page.locator("#liveHeads button").last.click()  # cut this head
    assert page.evaluate("document.activeElement.title") == "keep this head"  # the keyboard is where it pressed
    page.locator("#ask-cut").click()
    page.wait_for_selector("#liveAnswer h3:text('without layer 1, head 2')")
    assert "nats per token" in page.locator("#liveAnswer").inner_text() and page.locator("#liveAnswer .likely tr").count() > 2
    page.locator("#liveHeads button").first.click()  # keep it
    page.locator("#ask-cut").click()
    page.wait_for_selector("#liveAnswer h3:text('the whole model: no head is cut')")
    assert "without" not in page.locator("#liveAnswer").inner_text() and page.locator("#liveAnswer .likely tr").count() > 2
    page.locator("#liveHeads button").last.click()
    page.locator("#liveText").fill("the dog and the dog")
    page.locator("#liveTokens").fill("3")
    page.locator("#ask-generate").click()
    page.wait_for_selector("#liveAnswer h3:text('cut')")
    assert page.locator("#liveAnswer .said").count() == 2
    page.locator("#ask-page").click()
    page.wait_for_url(re.compile(r"/\d+/"))
    assert settled(page).evaluate("file.views[1].cut.heads") == [[1, 2]] and "dog" in page.locator("#panel").inner_text()
    page.evaluate("for (const view of file.views) view.layers.forEach((l, n) => { l.number = 1 - n; })")  # as of chosen layers
    page.locator(".thumb[data-layer='1'][data-head='0']").click()
    settled(page).locator("#liveHeads button", has_text="cut layer 0, head 0").click()
    with page.expect_request(lambda request: request.method == "POST") as waiting:
        page.locator("#ask-cut").click()
    assert waiting.value.post_data_json["cut"] == [[1, 2], [0, 0]]
    page.wait_for_selector("#liveAnswer h3:text('without layer 1, head 2; layer 0, head 0')")


def test_two_clients_at_once(server: Any) -> None:
    """One that sends nothing keeps nobody waiting; two that compute get their own answers."""
    answers: dict[str, Any] = {}
    with socket.create_connection(server.server_address) as silent:
        silent.sendall(f"POST /{server.token}/cut HTTP/1.1\r\nHost: 127.0.0.1".encode())
        texts = ["the cat sat on the mat", "the dog and the dog"]
        threads = [threading.Thread(target=lambda t=text: answers.update({t: asked(server, "cut", {"text": t, "cut": [[0, 0]]})[2]})) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [answers[text]["tokens"] for text in texts] == [text.split() for text in texts]
    assert not any(module._forward_pre_hooks for module in server.pages.explored[0].model.modules())


def test_a_call_beside_the_server_waits_for_it(server: Any) -> None:
    """Its hooks would otherwise be cut into what the other computes."""
    one = server.pages.explored[0]
    calls = {"cut": lambda: one.cut([(0, 0)], keep=False)["cut"]["loss"], "generate": lambda: one.generate(4, [(0, 0)]),
             "every": lambda: one.every()["cut loss"][1].tolist(),
             "capture": lambda: qkv.transformers.capture_attention(one.model, one.inputs).layers[1].map.tolist()}  # fmt: skip
    expected = {name: call() for name, call in calls.items()}
    for name, call in calls.items():
        runs, done = threading.Event(), threading.Event()

        def hold(*_: Any, runs: Any = runs, done: Any = done) -> None:
            if threading.current_thread() is not threading.main_thread() and not runs.is_set():
                runs.set()
                done.wait(0.3)

        with one.model.register_forward_pre_hook(hold):
            answers: list[Any] = []
            asks = threading.Thread(target=lambda a=answers: a.append(asked(server, "cut", {"cut": [[0, 1], [1, 1]]})[2]))
            asks.start()
            assert runs.wait(20)
            got = call()
            done.set()
            asks.join()
        assert got == expected[name], name
        assert answers[0]["cut"]["loss"] == asked(server, "cut", {"cut": [[0, 1], [1, 1]]})[2]["cut"]["loss"]


def test_closing_waits_for_an_answer(server: Any) -> None:
    made, started, go = server.pages.explored[0].serve(forever=False), threading.Event(), threading.Event()
    made.pages.answer = lambda *_: {"begun": started.set(), "ended": go.wait(30)}
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(asked(made, "cut", {"cut": [[0, 0]]})))
    asking.start()
    assert started.wait(30)
    closing = threading.Thread(target=made.close)
    closing.start()
    closing.join(1.5)  # shutdown alone takes half a second
    assert closing.is_alive()
    go.set()
    closing.join(30)
    asking.join(30)
    assert not closing.is_alive() and answers[0][0] == 200 and answers[0][2] == {"begun": None, "ended": True}


def test_control_c_ends_it(tmp_path: Any) -> None:
    model_of("gpt2").save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    assert qkv.explore(str(tmp_path), "the cat").captures.title == f"{tmp_path.name} (GPT2LMHeadModel)"
    command = [sys.executable, "-m", "qkv", "explore", str(tmp_path), "--text", "the cat", "--serve", "--quiet"]
    command += ["--out", str(tmp_path / "page.html"), "--title", "two words"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wrote, address = (process.stdout.readline().strip() for _ in range(2))  # type: ignore[union-attr]
        assert wrote.startswith(f"wrote {tmp_path / 'page.html'}") and "connect-src" not in (tmp_path / "page.html").read_text(encoding="utf-8")
        host, port, token = re.fullmatch(r"http://([\d.]+):(\d+)/([\w-]{32,})/", address).groups()  # type: ignore[union-attr]
        link = http.client.HTTPConnection(host, int(port), timeout=30)
        link.request("GET", f"/{token}/")
        reply = link.getresponse()
        assert reply.status == 200 and b"two words" in reply.read()
        os.kill(process.pid, signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # where it was started with SIGINT ignored
        assert process.returncode == 0 and "Traceback" not in errors, errors
