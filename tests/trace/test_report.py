"""report.html of `plait analyze -o` in a browser: drawing, clicks, drags and keys."""

import itertools
import json
import pathlib
import shutil
import time

import pytest
from browsers import chromium, emulate_scheme, inked, lightness
from captures import analyze
from hosts import Pair, reason_to_skip, unique_id, wait_for

webdriver = pytest.importorskip("selenium.webdriver", reason="not installed: python3-selenium")
from selenium.webdriver import ActionChains, Keys  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

FIGURES = ("throughput", "rtt", "sequence")
STREAMS = 5
# By ss, half a second apart.
SAMPLES = 5


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Downloads in several connections at once over two links, one of which is cut for a while."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    if not shutil.which("iperf3"):
        pytest.skip("not installed: iperf3")
    pair = Pair(unique_id(), tmp_path_factory.mktemp("captures"), rate="20mbit")
    try:
        pair.build()
        pair.server.start("mptcpize", "run", "iperf3", "-s", log="server.log")
        wait_for("iperf3", lambda: pair.server.listens(5201))
        with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
            arguments = ("-c", pair.ETH, "-R", "-P", STREAMS, "-t", 7, "-i", 0.5, "-J")
            client = pair.client.start("mptcpize", "run", "iperf3", *arguments, log="iperf3.json")
            time.sleep(2)
            pair.client.add_packet_rules(input="iifname wlan drop")
            with (pair.directory / "ss.txt").open("w") as samples:
                for _ in range(SAMPLES):
                    samples.write(f"{time.time():.6f}\n")
                    samples.write(pair.client.run("ss", "-tMinoOH", text=True).stdout)
                    time.sleep(0.5)
            pair.client.remove_packet_rules()
            assert client.wait(60) == 0, (pair.directory / "iperf3.json").read_text()
        yield [eth.file, wlan.file, pair.directory / "iperf3.json", pair.directory / "ss.txt"]
    finally:
        pair.remove()


def write_report(directory: pathlib.Path, *captures):
    done = analyze(*captures, "-o", directory)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def directory(captures, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    write_report(directory, *captures)
    return directory


@pytest.fixture(scope="module")
def browser():
    yield from chromium()


class Page:
    """A report in the browser."""

    def __init__(self, browser, file: pathlib.Path, scheme: str = "light"):
        self.browser = browser
        emulate_scheme(browser, scheme)
        browser.get(file.as_uri())
        self.settle()

    def settle(self):
        """Waits until changes are drawn."""
        self.browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 50))")

    def all(self, selector: str) -> list:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def click(self, selector: str):
        self.one(selector).click()
        self.settle()

    def drawn(self, figure: str) -> str:
        return self.browser.execute_script(f"return document.querySelector('#{figure} canvas').toDataURL()")

    def times(self) -> list[list[float]]:
        """From when to when each plot shows, in seconds."""
        script = "return plots.plots.map(({plot}) => [plot.scales.x.min, plot.scales.x.max])"
        return self.browser.execute_script(script)

    def drag(self, figure: str, start: float, end: float):
        """Drags from one place to another, given as shares of a plot's width."""
        area = self.one(f"#{figure} .u-over")
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
        width = area.size["width"]
        actions = ActionChains(self.browser, duration=50)
        actions.move_to_element_with_offset(area, (start - 0.5) * width, 0).click_and_hold()
        actions.move_to_element_with_offset(area, (end - 0.5) * width, 0).release().perform()
        self.settle()

    def errors(self) -> list[str]:
        return [line["message"] for line in self.browser.get_log("browser")]


@pytest.fixture
def page(browser, directory):
    page = Page(browser, directory / "report.html")
    yield page
    assert page.errors() == []


def test_page_needs_no_network(page):
    loaded = page.browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert loaded == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_are_drawn_in_light_and_dark(browser, directory, scheme):
    page = Page(browser, directory / "report.html", scheme)
    script = "return getComputedStyle(document.body).backgroundColor"
    background = browser.execute_script(script)
    assert lightness(browser) > 700 if scheme == "light" else lightness(browser) < 100
    for figure in FIGURES:
        found = inked(browser, figure)
        assert found["drawn"] > 1000 and found["coloured"] > 200, (figure, found)
    before = page.drawn("throughput")
    page.click("#theme")
    assert browser.execute_script(script) != background
    assert page.drawn("throughput") != before
    assert page.errors() == []


def test_click_selects_connection(page):
    before = {figure: page.drawn(figure) for figure in FIGURES}
    first = page.one("#chosen-title").text
    page.click('#connection-table tr[aria-selected="false"]')
    assert page.one("#chosen-title").text != first
    for figure in FIGURES:
        assert page.drawn(figure) != before[figure], figure


def test_drag_zooms_and_double_click_resets(page):
    whole = page.times()
    assert not page.one("#reset").is_enabled()
    page.drag("rtt", 0.25, 0.5)
    (start, end) = whole[0]
    for shown_from, shown_to in page.times():
        assert shown_from == pytest.approx(start + 0.25 * (end - start), abs=0.01 * (end - start))
        assert shown_to == pytest.approx(start + 0.5 * (end - start), abs=0.01 * (end - start))
    page.click("#reset")
    assert page.times() == whole
    page.drag("throughput", 0.5, 0.2)
    assert page.times() != whole
    ActionChains(page.browser).double_click(page.one("#sequence .u-over")).perform()
    page.settle()
    assert page.times() == whole


def test_keys_zoom_move_and_reset(page):
    whole = page.times()
    plots = page.one("#plots")
    plots.send_keys("+")
    page.settle()
    (zoomed_from, zoomed_to) = page.times()[0]
    assert zoomed_to - zoomed_from == pytest.approx((whole[0][1] - whole[0][0]) / 2)
    plots.send_keys(Keys.ARROW_RIGHT)
    page.settle()
    assert page.times()[0][0] > zoomed_from
    plots.send_keys("0")
    page.settle()
    assert page.times() == whole


def test_cursor_shows_values_in_all_plots(page):
    area = page.one("#throughput .u-over")
    read = []
    heights = itertools.cycle((0, 1))
    # Also where the connection carried nothing, as at its start, and in between on a busy machine.
    for share in (-0.499, -0.4, -0.2, 0, 0.2, 0.4):

        def shows_values() -> bool:
            # The page may move under the cursor while it is drawn. Nothing happens where the cursor is already.
            place = share * area.size["width"]  # noqa: B023
            ActionChains(page.browser).move_to_element_with_offset(area, place, next(heights)).perform()
            return "b/s" in page.one("#throughput .values").text

        wait_for("values under the cursor", shows_values)
        read.append([page.one(f"#{figure} .values").text for figure in FIGURES])
    throughput, rtt, sequence = zip(*read, strict=True)
    assert all("b/s" in text and "total" in text for text in throughput)
    assert any(" ms" in text for text in rtt)
    assert any("MB on" in text for text in sequence)


def test_buttons_choose_direction_goodput_and_stacks(page):
    for button in ("goodput", "stacked"):
        before = page.drawn("throughput")
        page.click(f'[data-set="{button}"][data-value="true"]')
        assert page.drawn("throughput") != before, button
    page.click('[data-set="direction"][data-value="client_to_server"]')
    assert "client → server" in page.one("#subflow-direction").text


def test_a_subflow_can_be_hidden(page):
    before = page.drawn("sequence")
    page.click("#subflow-keys button")
    assert page.one("#subflow-keys button").get_attribute("aria-pressed") == "false"
    assert page.drawn("sequence") != before


def test_connections_are_sorted_and_filtered(page):
    def ids():
        return [row.get_attribute("data-id") for row in page.all("#connection-table tr[data-id]")]

    assert len(ids()) == STREAMS + 1
    page.click("#connection-table th:first-child button")
    assert ids() == sorted(ids(), key=int)
    page.click("#connection-table th:first-child button")
    assert ids() == sorted(ids(), key=int, reverse=True)
    port = page.one("#connection-table tr[data-id] td:nth-child(3)").text.rsplit(":", 1)[1]
    page.one("#filter").send_keys(port)
    assert len(ids()) == 1
    page.one("#connection-table tr[data-id]").send_keys(Keys.ENTER)
    assert page.one("#chosen-title").text == f"Connection {ids()[0]}"


def test_page_matches_document(page, directory):
    found = json.loads((directory / "analysis.json").read_text())
    assert any(connection["failovers"] for connection in found["connections"])
    for connection in found["connections"]:
        page.click(f'tr[data-id="{connection["id"]}"]')
        assert len(page.all("#subflow-table tbody tr")) == len(connection["subflows"])
        failovers = [line.text for line in page.all(".failover")]
        assert len(failovers) == len(connection["failovers"])
        for text, failover in zip(failovers, connection["failovers"], strict=True):
            assert text.startswith(failover["path"].replace("->", "→"))


def test_escapes_names(browser, captures, tmp_path):
    name = "<img src=x onerror='window.hit = 1'>.pcap"
    shutil.copy(captures[0], tmp_path / name)
    write_report(tmp_path / "out", tmp_path / name)
    page = Page(browser, tmp_path / "out" / "report.html")
    assert page.one("#title").text == name
    assert browser.execute_script("return window.hit === undefined")
    assert page.errors() == []


def test_report_of_a_tiny_connection(browser, captures, tmp_path):
    head = tmp_path / "head.pcap"
    # The handshake of the first connection, cut off in a record.
    head.write_bytes(captures[0].read_bytes()[:400])
    write_report(tmp_path / "out", head)
    page = Page(browser, tmp_path / "out" / "report.html")
    assert len(page.all("#connection-table tr[data-id]")) == 1
    assert len(page.all("#warnings .warning")) == 1
    assert page.one("#no-plots").is_displayed() and not page.one("#plots").is_displayed()
    assert page.errors() == []


def test_plots_are_written_with_the_report(directory):
    plots = {file.name for file in (directory / "plots").iterdir()}
    for figure in (*FIGURES, "share"):
        (svg,) = [file for file in (directory / "plots").glob(f"*-{figure}.svg")][:1]
        assert svg.with_suffix(".png").name in plots
        assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_external_metrics_share_the_time_axis(directory, captures):
    document = json.loads((directory / "analysis.json").read_text())
    metrics = {(one["source"], one["subject"], one["metric"]): one for one in document["external_metrics"]}
    *_, measured, samples = captures
    iperf3 = json.loads(measured.read_text())
    rates = [interval["sum"]["bits_per_second"] / 1e6 for interval in iperf3["intervals"]]
    points = metrics["iperf3", "all streams", "received"]["points"]
    assert [rate for _, rate in points] == pytest.approx(rates)
    # iperf3 tells its start in whole seconds.
    begin = min(connection["start"] for connection in document["connections"])
    assert abs(points[0][0] - begin) < 2
    lines = samples.read_text().splitlines()
    times = [float(line) for line in lines if " " not in line]
    assert len(times) == SAMPLES
    subflows = [subflow for connection in document["connections"] for subflow in connection["subflows"]]
    compared = 0
    for subflow in subflows:
        # The control connection may carry its first bytes after the last sample.
        if not subflow["accepted"] or subflow["bytes"]["server_to_client"] < 100_000:
            continue
        compared += 1
        received = metrics["ss", f"{subflow['src']} -> {subflow['dst']}", "bytes_received"]
        assert [time for time, _ in received["points"]] == pytest.approx(times)
        assert received["points"][-1][1] <= subflow["bytes"]["server_to_client"] + 1
        address, _, port = subflow["src"].rpartition(":")
        last = lines[len(lines) - lines[::-1].index(f"{times[-1]:.6f}") :]
        local = [line for line in last if line.split()[4].startswith(address) and f":{port} " in line]
        (line,) = [line for line in local if line.startswith("tcp")]
        assert f"bytes_received:{received['points'][-1][1]:.0f} " in line
    assert compared >= 2


def test_external_metrics_are_drawn(browser, directory):
    page = Page(browser, directory / "report.html")
    figure = browser.find_element(By.ID, "external-metrics")
    assert figure.is_displayed()
    names = [option.text for option in figure.find_elements(By.TAG_NAME, "option")]
    assert "ss: rtt (ms)" in names and "iperf3: received (Mb/s)" in names
    for name in ("ss: rtt (ms)", "iperf3: received (Mb/s)"):
        Select(figure.find_element(By.TAG_NAME, "select")).select_by_visible_text(name)
        page.settle()
        assert inked(page.browser, "external-metrics")["coloured"] > 100, "nothing but axes"
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
