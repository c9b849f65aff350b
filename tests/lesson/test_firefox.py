"""The lesson's page in Firefox, where it is there: WebDriver BiDi over a WebSocket of the standard library's sockets."""

import json
import re
import shlex
import shutil
import socket
import subprocess

import pytest
from test_lab import NOW, lesson, tool
from test_steps import TYPE, WORDS

__all__ = ["lesson"]


class Firefox:
    def __init__(self, process):
        found = next(filter(None, (re.search(r"BiDi listening on ws://127\.0\.0\.1:(\d+)", line) for line in process.stderr)), None)
        if found is None:
            pytest.skip("this Firefox ends before it listens")
        self.link = socket.create_connection(("127.0.0.1", int(found[1])), timeout=60)
        self.bytes, self.asked, self.said = self.link.makefile("rb"), 0, []
        lines = ["GET /session HTTP/1.1", f"Host: 127.0.0.1:{found[1]}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        self.link.sendall("\r\n".join([*lines, f"Sec-WebSocket-Key: {'A' * 22}==", "", ""]).encode())
        while self.bytes.readline().strip():
            pass
        self.ask("session.new", capabilities={})
        self.ask("session.subscribe", events=["log.entryAdded"])
        self.page = self.ask("browsingContext.getTree")["contexts"][0]["context"]

    def ask(self, method, **params):
        self.asked += 1
        data = json.dumps({"id": self.asked, "method": method, "params": params}).encode().ljust(126)
        masked = bytes(x ^ (n % 4 == 3) for n, x in enumerate(data))  # Firefox takes a mask of zeros for none
        self.link.sendall(b"\x81\xfe" + len(data).to_bytes(2, "big") + b"\0\0\0\1" + masked)  # one text of 126 bytes or more
        while True:
            message = json.loads(self._message())
            if message.get("method") == "log.entryAdded":
                self.said.append(message["params"]["text"])
            if message.get("id") == self.asked:
                assert message["type"] == "success", message
                return message["result"]

    def _message(self):
        data, is_last = b"", False
        while not is_last:
            first, size = self.bytes.read(2)
            is_last = first >= 128
            data += self.bytes.read(int.from_bytes(self.bytes.read({126: 2, 127: 8}[size]), "big") if size > 125 else size)
        return data

    def value(self, expression):
        run = f"(async () => JSON.stringify(await ({expression})) ?? 'null')()"
        answer = self.ask("script.evaluate", expression=run, target={"context": self.page}, awaitPromise=True)
        return json.loads(answer["result"]["value"])  # no "result": the page threw

    def until(self, holds):
        self.value(f"new Promise(done => {{ const wait = () => {holds} ? done(0) : setTimeout(wait, 20); wait(); }})")


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("no Firefox here: apt-get install firefox-esr")
    command = [program, "--headless", "--no-remote", "--profile", str(tmp_path_factory.mktemp("firefox")), "--remote-debugging-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Firefox(process)
        finally:
            process.terminate()


@pytest.mark.parametrize(("lang", "width"), [("en", 390), ("zh", 1440)])
def test_every_step_and_a_training(lesson, firefox, lang, width):
    firefox.ask("browsingContext.setViewport", context=firefox.page, viewport={"width": width, "height": 900})
    firefox.ask("browsingContext.navigate", context=firefox.page, url=f"{lesson.as_uri()}?{lang}#lang={lang}", wait="complete")
    firefox.until("'ready' in document.body.dataset")
    for n, step in enumerate(WORDS[lang]["steps"], 1):
        assert firefox.value("document.querySelector('h2').textContent") == f"{n}{step['question']}"
        assert firefox.value(f"({TYPE})(exampleOf[{json.dumps(step['pencil']['answer'])}])")[0] == "right"
        drawn = "[document.querySelectorAll('.picture svg *').length, document.documentElement.scrollWidth]"
        parts, wide = firefox.value(f"new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done({drawn}))))")
        assert (parts > 20 or n == 12) and wide <= width
        firefox.value("el('after').click()")
    firefox.until("lab?.moments")
    firefox.value("el('labTrain').click()")
    firefox.until("!lab.running")
    now = firefox.value(f"({NOW})()")
    told = json.loads(subprocess.check_output([str(tool.TOOL), *shlex.split(now["command"])[1:], "--json"]))
    assert told["losses"] == now["losses"] and now["step"] == 60 and not firefox.said
