"""`plait web`: the data of the page, access to it, and the page in a browser."""

import contextlib
import json

import pytest
from browsers import chromium, emulate_scheme, inked, lightness
from hosts import PLAIT, wait_for
from streams import random_file

webdriver = pytest.importorskip("selenium.webdriver", reason="not installed: python3-selenium")
from selenium.webdriver import ActionChains, Keys  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

PORT = 9465
SIZE = 8_000_000
# Each way of each link, so that a download lasts some seconds.
RATE = "20mbit"


class Web:
    """A running `plait web` and its stream of updates, as curl reads it."""

    def __init__(self, pair, *options, host=None):
        self.host = host or pair.client
        self.directory = pair.directory
        listen = options or ("--listen", f"127.0.0.1:{PORT}")
        self.program = self.host.start(
            PLAIT, "web", "--interval", "200ms", "--trusted", "eth", *listen, log="web.log"
        )
        wait_for("web", lambda: self.program.poll() is not None or "#" in self.log())
        assert self.program.poll() is None, self.log()
        self.token = self.log().rpartition("#")[2].strip()

    def log(self) -> str:
        return (self.directory / "web.log").read_text()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{PORT}/{path}"

    def status(self, path: str, *options, prefix=(), host=None, url=None) -> str:
        """The HTTP status of a request by curl."""
        command = ("curl", "-sS", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}", *options)
        done = (host or self.host).run(*prefix, *command, url or self.url(path), text=True)
        return done.stdout

    def post(self, path: str) -> str:
        return self.status(path, "-X", "POST", "-m", "60", "-H", f"Authorization: Bearer {self.token}")

    @contextlib.contextmanager
    def updates(self):
        """Collects updates while this context lasts."""
        file = self.directory / "updates.txt"
        file.unlink(missing_ok=True)
        curl = self.host.start("curl", "-sSN", self.url("updates"), log=file.name)
        updates = Updates(file)
        wait_for("an update", updates.all)
        yield updates
        curl.terminate()
        curl.wait(10)


class Updates:
    def __init__(self, file):
        self.file = file

    def all(self) -> list[dict]:
        """Those that arrived."""
        *events, _ = self.file.read_text().split("\n\n")
        fields = [
            dict(line.split(": ", 1) for line in event.splitlines() if ": " in line) for event in events
        ]
        return [json.loads(event["data"]) for event in fields if event.get("event") == "update"]

    def events(self, kind: str) -> list[dict]:
        return [event for update in self.all() for event in update["events"] if event["kind"] == kind]


@pytest.fixture
def slow(make_pair):
    return make_pair(rate=RATE)


@contextlib.contextmanager
def download(pair, size: int = SIZE):
    """A protected download by curl, which has ended when this context is left."""
    document = random_file(pair.directory, size)
    pair.serve("--require", to=pair.nginx(pair.directory))
    target = pair.directory / "fetched"
    command = ("curl", "-sS", "-o", target, f"http://{pair.ETH}:8443/{document.name}")
    program = pair.client.start(PLAIT, "run", "--require", "--trusted", "eth", "--", *command, log="run.log")
    yield program
    assert program.wait(120) == 0, pair.logged("run")
    assert target.read_bytes() == document.read_bytes()


def test_updates_show_a_protected_connection_and_all_its_bytes(slow):
    web = Web(slow)
    slow.client.ip(f"route replace 10.77.1.0/24 via {slow.WLAN} dev wlan metric 1000")
    with web.updates() as updates:
        with download(slow):
            pass
        wait_for("the end of the connection", lambda: updates.events("connection-closed"))
        every = updates.all()
    carried = [
        (update, connection)
        for update in every
        for connection in update["connections"]
        if connection["gateway"] == "run" and connection["protection"] == "sealed"
    ]
    [token] = {connection["token"] for _, connection in carried}
    assert "curl" in {connection["program"] for _, connection in carried}
    assert "2/2" in {connection["level"] for _, connection in carried}
    received = sum(
        connection["received_bps"] * update["interval_s"] / 8
        for update in every
        for connection in update["connections"]
        if connection["token"] == token
    )
    # Each record of at most 16 KiB has a header and a tag.
    assert SIZE <= received <= 1.02 * SIZE, received
    # Not while the connection exists by which the other path was shown to lead to the peer.
    alone = [update for update in every if {each["token"] for each in update["connections"]} == {token}]
    busy = max(alone, key=lambda update: sum(path["received_bps"] for path in update["paths"]))
    roles = {path["name"]: path["role"] for path in busy["paths"]}
    assert roles == {"eth": "trusted", "wlan": "untrusted"}
    for path in busy["paths"]:
        exposure = path["exposure"]
        assert exposure["sealed_bps"] > 0 and not exposure["none_bps"] and not exposure["off_bps"], exposure
        assert path["rtt_ms"] > 0 and path["subflows"] >= 1


def test_a_cut_path_is_a_failover(slow):
    web = Web(slow)
    with web.updates() as updates, download(slow, 3 * SIZE):
        both = lambda: any(all(path["received_bps"] > 1e6 for path in f["paths"]) for f in updates.all()[-3:])  # noqa: E731
        wait_for("data on both paths", both)
        slow.client.ip("link set wlan down")
        found = wait_for("a failover", lambda: updates.events("failover"))
    assert found[0]["path"] == "wlan" and found[0]["to"] == ["eth"], found


def test_who_may_read_and_who_may_change(pair):
    web = Web(pair)
    token = ("-H", f"Authorization: Bearer {web.token}")
    # The stream does not end by itself: curl has the status all the same.
    assert web.status("updates") == "200"
    assert web.status("updates", "-H", "Host: plait.example:9465") == "403"
    assert web.status("updates", "-H", "Host: localhost:9465") == "200"
    nobody = ("setpriv", "--reuid=65534", "--clear-groups")
    assert web.status("updates", prefix=nobody) == "403"
    assert web.status("updates", *token, prefix=nobody) == "200"
    assert web.status("", prefix=nobody) == "200"
    assert web.status("captures", "-X", "POST") == "403"
    assert web.status("captures", "-X", "POST", "-H", "Authorization: Bearer 00") == "403"
    assert web.status(f"captures?token={web.token}", "-X", "POST") == "403"
    assert web.status("captures/1") == "404"
    assert web.token not in pair.client.run("curl", "-sS", web.url(""), web.url("live.js"), text=True).stdout


def test_other_hosts_need_the_token(pair):
    web = Web(pair, "--listen", f"[::]:{PORT}")
    url = f"http://10.77.1.1:{PORT}/updates"
    assert web.status("", host=pair.server, url=url) == "403"
    token = ("-H", f"Authorization: Bearer {web.token}")
    assert web.status("", *token, host=pair.server, url=url) == "200"


def test_a_capture_becomes_a_report(slow):
    web = Web(slow)
    assert web.post("captures") == "204"
    assert web.post("captures") == "409", "one at a time"
    with download(slow, SIZE // 8):
        pass
    assert web.post("captures/end") == "204"
    page = slow.client.run("curl", "-sS", web.url("captures/1"), text=True).stdout
    assert "plait report" in page and f"{slow.ETH}:8443" in page
    with web.updates() as updates:
        ended = {"recording_since": None, "reports": [1], "error": None}
        wait_for("the report", lambda: updates.all()[-1]["captures"] == ended)


def test_captures_end_with_the_page(pair):
    web = Web(pair)
    recording = lambda: "tcpdump" in commands(pair.client)  # noqa: E731
    assert web.post("captures") == "204"
    wait_for("tcpdump", recording)
    web.program.terminate()
    assert web.program.wait(30) == 0
    assert not recording()


def commands(host) -> set[str]:
    """The names of the programs that run in a host's namespace."""
    pids = host.run("ip", "netns", "pids", host.name, text=True).stdout.split()
    return set(host.run("ps", "-o", "comm=", "-p", ",".join(pids), text=True).stdout.split())


# In a browser


@pytest.fixture
def browser(slow):
    """Chromium on the client."""
    with slow.client.inside():
        yield from chromium()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_draws_paths_connections_and_events(slow, browser, scheme):
    web = Web(slow)
    emulate_scheme(browser, scheme)
    browser.get(web.url(f"#{web.token}"))
    with download(slow):
        text = lambda selector: browser.find_element(By.CSS_SELECTOR, selector).text  # noqa: E731
        wait_for("the connection", lambda: "curl · plait run · 10.77.1.2:8443" in text("#connections"))
        wait_for("its subflow", lambda: "wlan" in text("#connections"))
        wait_for("what is readable", lambda: "could read nothing: all is sealed" in text("#paths"))
        assert "eth" in text("#paths") and "untrusted" in text("#paths")
        for figure in ("throughput", "rtt"):
            wait_for(f"a line for {figure}", lambda figure=figure: inked(browser, figure)["coloured"] > 100)
    wait_for("the end", lambda: "closed" in text("#events"))
    assert lightness(browser) > 700 if scheme == "light" else lightness(browser) < 100
    assert errors(browser) == []


def test_page_fits_a_telephone_and_works_by_keyboard(slow, browser):
    web = Web(slow, "--listen", f"127.0.0.1:{PORT}", "--captures", slow.directory / "captures")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True},
    )
    browser.get(web.url(f"#{web.token}"))
    button = browser.find_element(By.ID, "capture")
    wait_for("the button", button.is_enabled)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
    focused = lambda: browser.execute_script("return document.activeElement.id")  # noqa: E731
    for _ in range(10):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if focused() == "capture":
            break
    assert focused() == "capture"
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    wait_for("the capture", lambda: button.text == "End the capture")
    wait_for("tcpdump", lambda: "tcpdump" in commands(slow.client))

    def captured() -> bool:
        # Refused, which is a packet in the report.
        slow.client.run("curl", "-s", f"http://{slow.ETH}:1/")
        return any(file.stat().st_size > 100 for file in slow.directory.glob("captures/*/*.pcap*"))

    wait_for("a captured packet", captured)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    wait_for("its report", lambda: browser.find_elements(By.CSS_SELECTOR, "#reports a"))
    assert errors(browser) == []


def errors(browser) -> list[str]:
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]
