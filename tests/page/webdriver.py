# SPDX-License-Identifier: Apache-2.0
"""The few calls of WebDriver that the tests of pages need, over chromedriver and the standard library alone."""
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request


def is_there():
    return all(shutil.which(program) for program in ("chromium", "chromedriver"))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Browser:
    """A headless Chromium without a network: every request but for files would fail."""

    def __init__(self, dark=False):
        self.port = free_port()
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1300,1000",
                     "--host-resolver-rules=MAP * ~NOTFOUND"]
        if dark:
            arguments.append("--force-dark-mode")
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments},
                                                   "goog:loggingPrefs": {"browser": "ALL"}}}}
        self.session = None
        while self.session is None:
            try:
                self.session = self.call("POST", "/session", wanted)["sessionId"]
            except urllib.error.URLError:
                if self.driver.poll() is not None:
                    raise RuntimeError("chromedriver ended") from None
                time.sleep(0.05)

    def call(self, method, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as failure:
            raise RuntimeError(json.load(failure)["value"]["message"]) from None

    def do(self, method, path, body=None):
        return self.call(method, f"/session/{self.session}{path}", body)

    def open(self, path):
        self.do("POST", "/url", {"url": f"file://{path}"})

    def run(self, script, *arguments):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def log(self):
        return self.do("POST", "/se/log", {"type": "browser"})

    def find(self, selector):
        return next(iter(self.do("POST", "/element", {"using": "css selector", "value": selector}).values()))

    def click(self, selector):
        self.do("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self.do("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def close(self):
        try:
            self.do("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
