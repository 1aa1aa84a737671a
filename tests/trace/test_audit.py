"""`plait audit`: what it recovers from captures of real transfers and synthetic ones, and that it claims no more."""

import json
import pathlib
import random
import shutil
import subprocess
import zlib

import pytest
import schema
from captures import pcap, segment
from hosts import PLAIT, REPOSITORY, reason_to_skip, tool
from streams import fetch, random_file

PROSE = (REPOSITORY / "tests" / "data" / "prose.txt").read_bytes()
LINKS = ("eth", "wlan")

needs_editcap = pytest.mark.skipif(not shutil.which("editcap"), reason="not installed: editcap")


def audit(*arguments, check=True, **more) -> subprocess.CompletedProcess:
    command = [PLAIT, "audit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=300, **more)
    assert done.returncode == 0 or not check, done.stderr.decode()
    return done


def audited(*arguments, **more) -> dict:
    document = json.loads(audit("--json", *arguments, **more).stdout)
    assert schema.mistakes(document, "audit") == []
    return document


def paths_of(*arguments, **more) -> list[dict]:
    return audited(*arguments, **more)["paths"]


def scrambled(plain: bytes, seed: bytes = b"\x17" * 8) -> bytes:
    """xor64, implemented from its definition."""
    window = list(bytes(64 - len(seed)) + seed)
    wire = bytearray()
    for byte in plain:
        mixed = byte
        for before in window:
            mixed ^= before
        wire.append(mixed)
        window = [*window[1:], byte]
    return bytes(wire)


def capture(
    directory: pathlib.Path,
    payload: bytes,
    *,
    at: int = 0,
    name: str = "path.pcap",
    port: int = 40000,
    whole: bool = False,
) -> pathlib.Path:
    """A connection of which one contiguous run was captured: `payload`, from byte `at` of the stream. With `whole`, also
    the SYN-ACK and both FINs."""
    packets = [segment(port)]
    if whole:
        packets.append(segment(port, flags=0x12, ack=1, back=True))
    for start in range(0, len(payload), 1400):
        packets.append(segment(port, payload[start : start + 1400], flags=0x18, sequence=1 + at + start))
    if whole:
        end = 1 + at + len(payload)
        packets.append(segment(port, flags=0x11, sequence=end, ack=1))
        packets.append(segment(port, flags=0x11, sequence=1, ack=end + 1, back=True))
    file = directory / name
    file.write_bytes(pcap(*packets))
    return file


@pytest.fixture(scope="module")
def long_prose(tmp_path_factory) -> pathlib.Path:
    """A megabyte of English: the sentences of the prose, shuffled repeatedly."""
    sentences = PROSE.decode().replace("\n\n", " ").split(". ")
    generator = random.Random(1)
    text = ""
    while len(text) < 1_000_000:
        generator.shuffle(sentences)
        text += ". ".join(sentences) + ".\n\n"
    file = tmp_path_factory.mktemp("documents") / "prose.txt"
    file.write_text(text)
    return file


def transfer(pair, mode: str, document: pathlib.Path) -> dict[str, dict]:
    """Fetches a document over both links and audits the capture of each link; the result by link."""
    protection = ("--mode", mode) if mode == "off" else ("--mode", mode, "--require")
    to = pair.nginx(document.parent)
    pair.serve(*protection, to=to)
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        assert fetch(pair, document, options=(*protection, "--trusted", "eth")) == document.read_bytes()
    report = pair.directory / "audit.html"
    views = paths_of(eth.file, wlan.file, "--ground-truth", document, "--report", report)
    assert [pathlib.Path(view["path"]).stem for view in views] == list(LINKS)
    assert "<script src" not in report.read_text() and "@import" not in report.read_text()
    views = dict(zip(LINKS, views, strict=True))
    # Part of the document crossed the untrusted path, in runs longer than a packet.
    assert 0.1 < views["wlan"]["exposure"]["fraction"] < 0.9
    assert views["wlan"]["exposure"]["longest_run"] >= 1400
    return views


@pytest.fixture(scope="module")
def transfers(tmp_path_factory) -> dict[str, dict[str, pathlib.Path]]:
    """The captures of `plait demo`, by mode and link."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("demo")
    command = [PLAIT, "demo", "--size", "1000000", "--out", directory]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    captures = {
        mode: {link: directory / mode / f"{link}.pcap" for link in LINKS}
        for mode in ("off", "xor64", "stream", "sealed")
    }
    # On a slow machine the demo may miss its own figures.
    assert all(file.exists() for links in captures.values() for file in links.values()), done.stderr
    return captures


def test_mode_off_is_readable(make_pair, long_prose):
    views = transfer(make_pair("20mbit"), "off", long_prose)
    for view in views.values():
        assert view["mode"] == "off"
        assert view["recovered_fraction"] > 0.95 and view["correct_fraction"] > 0.999, view["verdict"]


def test_xor64_of_english_is_broken(make_pair, long_prose):
    views = transfer(make_pair("20mbit"), "xor64", long_prose)
    for view in views.values():
        assert view["mode"] == "xor64"
        assert view["connections"][0]["mode_source"] == "handshake"
        assert view["recovered_fraction"] > 0.99 and view["correct_fraction"] > 0.99, view["verdict"]
        assert view["confidence"] > 0.98
    # The handshake, and with it the keys, crossed the trusted path.
    assert views["eth"]["connections"][0]["keys_captured"] and views["eth"]["attack"]["by_seed"] > 0
    assert not views["wlan"]["connections"][0]["keys_captured"]
    assert views["wlan"]["attack"]["by_language"] > 0 and views["wlan"]["attack"]["by_seed"] == 0


def test_claims_nothing_of_random_data_under_xor64(make_pair, documents):
    document = random_file(documents, 1_000_000)
    wlan = transfer(make_pair("20mbit"), "xor64", document)["wlan"]
    assert wlan["mode"] == "xor64"
    assert wlan["recovered_bytes"] == 0 and wlan["correct_fraction"] == 0
    assert "no better than chance" in wlan["verdict"]


def test_stream_is_readable_only_on_the_trusted_path(make_pair, long_prose):
    pair = make_pair("20mbit")
    if pair.client.run(PLAIT, "run", "--mode", "stream", "--", "true").returncode == 2:
        pytest.skip("plait run has no mode stream")
    views = transfer(pair, "stream", long_prose)
    assert {view["mode"] for view in views.values()} == {"stream"}
    assert views["wlan"]["recovered_bytes"] == 0 and views["wlan"]["correct_fraction"] == 0
    assert "no better than chance" in views["wlan"]["verdict"]
    direction = views["wlan"]["connections"][0]["directions"]["server_to_client"]
    assert (
        direction["looks_random"] and direction["entropy_bits"] > 7.9 and direction["packets"]["count"] > 10
    )
    assert views["eth"]["recovered_fraction"] > 0.99 and views["eth"]["correct_fraction"] > 0.999


def test_sealed_reveals_only_metadata_on_any_path(make_pair, long_prose):
    pair = make_pair("20mbit")
    pair.add_route_by_wlan()
    views = transfer(pair, "sealed", long_prose)
    for view in views.values():
        assert view["mode"] == "sealed" and view["attack"]["runs"] > 0 and view["attack"]["broken"] == 0
        assert {connection["mode_source"] for connection in view["connections"]} == {"handshake"}
        assert view["recovered_bytes"] == 0 and view["correct_fraction"] == 0
        assert "no better than chance" in view["verdict"]
        assert (
            "Still visible: " in view["verdict"] and "and the identifiers in the handshake" in view["verdict"]
        )
        carried = max(
            (both["directions"]["server_to_client"] for both in view["connections"]),
            key=lambda direction: direction["captured_bytes"],
        )
        assert carried["looks_random"] and carried["entropy_bits"] > 7.9
        assert carried["packets"]["count"] > 10 and carried["packets"]["last"] > carried["packets"]["first"]
    identifiers = {
        link: {found["kind"]: found["value"] for both in view["connections"] for found in both["identifiers"]}
        for link, view in views.items()
    }
    session = {"sealed session": identifiers["eth"]["sealed session"]}
    assert identifiers == {
        "eth": session | {"paths": "2 configured, 1 with a witness", "port of the service": "8443"},
        "wlan": session | {"witness of path": "1"},
    }


@pytest.mark.parametrize("start", [200, 3000, 9000, 15000])
def test_one_packet_of_english_under_xor64_is_broken(tmp_path, start):
    wire = scrambled(PROSE)[start : start + 1400]
    truth = tmp_path / "truth"
    truth.write_bytes(PROSE)
    # The capture has no handshake, so the mode is estimated from the bytes.
    (view,) = paths_of(capture(tmp_path, wire, at=start), "--ground-truth", truth)
    assert view["mode"] == "xor64" and view["connections"][0]["mode_source"] == "bytes"
    assert view["correct_fraction"] > 0.99, view["verdict"]


def test_estimates_the_mode_from_bytes(tmp_path):
    noise = random.Random(2).randbytes(20_000)
    modes = {}
    for name, payload in {"clear": PROSE, "scrambled": scrambled(PROSE), "random": noise}.items():
        (view,) = paths_of(capture(tmp_path, payload, at=500, name=f"{name}.pcap"))
        modes[name] = (view["mode"], view["recovered_fraction"] > 0.95)
    assert modes == {"clear": ("off", True), "scrambled": ("xor64", True), "random": ("unknown", False)}


def test_tls_records_under_mode_off_are_not_read(tmp_path):
    generator = random.Random(4)
    records = b"".join(b"\x17\x03\x03\x10\x00" + generator.randbytes(4096) for _ in range(20))
    (view,) = paths_of(capture(tmp_path, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" + records))
    assert view["mode"] == "off" and view["recovered_fraction"] < 0.05


def truncated(file: pathlib.Path, length: int) -> pathlib.Path:
    """The capture with at most this many bytes of each packet."""
    target = file.with_name(f"s{length}-{file.name}")
    tool("editcap", "-F", "pcap", "-s", str(length), str(file), str(target))
    return target


@needs_editcap
@pytest.mark.parametrize("length", [66, 90, 128, 400])
@pytest.mark.parametrize("mode", ["off", "xor64", "stream", "sealed"])
def test_truncated_captures_of_a_transfer_are_not_judged(transfers, tmp_path, mode, length):
    """Of no capture that lacks payload the audit says that nothing is read, in no output."""
    for link, file in transfers[mode].items():
        file = truncated(file, length)
        report = tmp_path / f"{link}.html"
        done = audit("--strict", "--runs", 5, "--report", report, file, check=False)
        text, page = done.stdout.decode(), report.read_text()
        assert done.returncode == 1 and f"cannot judge {file}" in done.stderr.decode()
        (view,) = paths_of(file, "--runs", 5)
        assert view["conclusion"] in ("read", "cannot_judge"), view["verdict"]
        assert 0 < view["not_captured_fraction"] <= 1
        assert "of the payload was not captured" in view["missing_evidence"][0]
        assert (
            "eavesdropper reads nothing" not in view["verdict"] and "Nothing crossed" not in view["verdict"]
        )
        assert view["verdict"] in text and "annot judge" in view["verdict"]
        assert 'class="view safe"' not in page and "of the payload was not captured" in page
        row = next(line for line in text.splitlines() if line.startswith(str(file)))
        assert " ? " in row or " >= " in row
        if view["conclusion"] == "cannot_judge":
            assert 'class="view unjudged"' in page


def test_strict_accepts_what_was_captured_and_attacked_completely(transfers):
    done = audit("--strict", transfers["sealed"]["eth"], transfers["sealed"]["wlan"], check=False)
    assert done.returncode == 0, done.stdout.decode()
    assert "An eavesdropper reads nothing." in done.stdout.decode()


def carrying_frames(file: pathlib.Path) -> dict[int, tuple[tuple, range]]:
    """The frames with payload, by number: the sending side, and the sequence numbers of the payload, as tshark reads them."""
    fields = ("frame.number", "tcp.stream", "tcp.srcport", "tcp.seq_raw", "tcp.len")
    options = [option for field in fields for option in ("-e", field)]
    lines = tool("tshark", "-r", str(file), "-Y", "tcp.len > 0", "-T", "fields", *options).splitlines()
    frames = {}
    for line in lines:
        number, stream, port, first, length = map(int, line.split("\t"))
        frames[number] = ((stream, port), range(first, first + length))
    return frames


@needs_editcap
@pytest.mark.skipif(not shutil.which("tshark"), reason="not installed: tshark")
@pytest.mark.parametrize("mode", ["off", "xor64", "stream", "sealed"])
def test_missing_packets_are_counted_and_not_judged(transfers, tmp_path, mode):
    """Compares the bytes found missing with those that only the removed packets carry."""
    for link, file in transfers[mode].items():
        frames = carrying_frames(file)
        removed = random.Random(7).sample(sorted(frames), min(5, len(frames)))
        kept = {
            (side, byte)
            for number, (side, bytes_) in frames.items()
            if number not in removed
            for byte in bytes_
        }
        lost = {
            (side, byte) for number in removed for side, bytes_ in [frames[number]] for byte in bytes_
        } - kept
        rest, report = tmp_path / f"{link}.pcap", tmp_path / f"{link}.html"
        tool("editcap", "-F", "pcap", str(file), str(rest), *map(str, removed))
        done = audit("--strict", "--runs", 5, "--report", report, rest, check=False)
        assert done.returncode == 1 and f"cannot judge {rest}" in done.stderr.decode()
        (view,) = paths_of(rest, "--runs", 5)
        assert view["missing_bytes"] == len(lost) > 0
        assert view["conclusion"] in ("read", "cannot_judge"), view["verdict"]
        sentence = f"{len(lost):,} bytes are missing in the capture"
        assert sentence in view["verdict"] and sentence in done.stdout.decode()
        assert sentence in report.read_text() and 'class="view safe"' not in report.read_text()


def test_a_capture_that_begins_late_or_ends_early_is_not_judged(tmp_path):
    noise = random.Random(8).randbytes(9000)
    whole = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00" + b"\x17\x03\x03\x23\x28" + noise
    file = capture(tmp_path, whole, whole=True)
    records = file.read_bytes()[24:]
    lengths, at = [], 0
    while at < len(records):
        lengths.append(16 + int.from_bytes(records[at + 8 : at + 12], "little"))
        at += lengths[-1]
    missing = {}
    for name, kept in {
        "all": slice(None),
        "no SYN": slice(1, None),
        "no end": slice(None, -2),
        "half an end": slice(None, -1),
    }.items():
        starts = [sum(lengths[:number]) for number in range(len(lengths))]
        chosen = list(zip(starts, lengths, strict=True))[kept]
        file.write_bytes(file.read_bytes()[:24] + b"".join(records[at : at + n] for at, n in chosen))
        missing[name] = paths_of(file)[0]["missing_evidence"]
    opening, end = (
        "no opening was captured of 1 TCP connection",
        "no end was captured of 1 TCP connection",
    )
    assert missing == {"all": [], "no SYN": [opening], "no end": [end], "half an end": [end]}


def test_random_bytes_without_a_handshake_are_not_called_unreadable(tmp_path):
    """They may be compressed text."""
    compressed = zlib.compress(PROSE, 9)
    (view,) = paths_of(capture(tmp_path, compressed))
    assert (view["mode"], view["conclusion"]) == ("unknown", "cannot_judge")
    assert "only compressed" in view["verdict"]


def test_damaged_and_unattacked_captures_are_not_judged(tmp_path):
    noise = capture(tmp_path, scrambled(random.Random(6).randbytes(9000)))
    (view,) = paths_of(noise, "--runs", 0)
    assert view["conclusion"] == "cannot_judge"
    noise.write_bytes(noise.read_bytes()[:-50])
    (view,) = paths_of(noise)
    assert view["conclusion"] == "cannot_judge" and "damaged" in view["verdict"]


def test_attacks_the_longest_runs_first_and_reports_skipped_ones(tmp_path):
    wire = scrambled(PROSE)
    packets = [segment(40000)]
    for start in range(1000, 19000, 3000):
        packets.append(segment(40000, wire[start : start + start // 20], flags=0x18, sequence=1 + start))
    file = tmp_path / "path.pcap"
    file.write_bytes(pcap(*packets))
    (view,) = paths_of(file, "--runs", 2)
    attack = view["attack"]
    assert (attack["runs"], attack["too_short"]["runs"], attack["skipped"]["runs"]) == (2, 1, 3)
    assert attack["skipped"]["bytes"] == 200 + 350 + 500
    assert "skipped: 3 runs with 1,050 bytes" in view["verdict"]


def test_page_and_table_show_all_paths_and_escape_their_names(tmp_path):
    clear = capture(tmp_path, PROSE, name="<b>clear.pcap", whole=True)
    hidden = capture(tmp_path, random.Random(5).randbytes(9000), name="hidden.pcap", port=40001)
    report = tmp_path / "audit.html"
    out = audit(clear, hidden, "--report", report).stdout.decode()
    assert "reads 100 % of the bytes that crossed" in out and "no better than chance" in out
    page = report.read_text()
    assert page.count("<article") == 2
    assert "&lt;b&gt;clear.pcap" in page and "<b>clear" not in page
    assert "When the bridge was finished, nobody in the village" in page


def test_reads_stdin_and_directories(tmp_path):
    file = capture(tmp_path, PROSE)
    (tmp_path / "counters.jsonl").write_text("")
    from_stdin = paths_of("-", input=file.read_bytes())
    from_directory = paths_of(tmp_path)
    assert from_stdin[0]["path"] == "-" and from_directory[0]["path"] == str(file)
    assert from_stdin[0]["recovered_bytes"] == from_directory[0]["recovered_bytes"] == len(PROSE)


def test_reports_missing_and_invalid_files(tmp_path):
    file = capture(tmp_path, PROSE)
    other = tmp_path / "other.txt"
    other.write_text("no capture")
    empty = tmp_path / "empty.pcap"
    empty.write_bytes(file.read_bytes()[:24])
    for arguments, status, message in [
        ((), 2, "required"),
        ((tmp_path / "missing.pcap",), 1, "missing.pcap"),
        ((other,), 1, "other.txt"),
        ((empty,), 1, "expected TCP"),
        ((file, "--ground-truth", tmp_path / "missing"), 1, "cannot read"),
        ((file, "--report", tmp_path / "no" / "where.html"), 1, "where.html"),
    ]:
        done = audit(*arguments, check=False)
        assert done.returncode == status and message in done.stderr.decode(), (arguments, done.stderr)


@pytest.mark.parametrize("cut", [25, 50, 200, 1000, 3333])
def test_uses_a_truncated_capture_up_to_the_damage(tmp_path, cut):
    file = capture(tmp_path, PROSE)
    file.write_bytes(file.read_bytes()[:cut])
    done = audit("--json", file, check=False)
    if done.returncode:
        assert "expected TCP" in done.stderr.decode()
    else:
        assert len(json.loads(done.stdout)["damaged"]) == 1


def test_training_text_shares_nothing_with_the_attacked_prose(tmp_path):
    if not shutil.which("zstd"):
        pytest.skip("not installed: zstd")
    model = REPOSITORY / "crates" / "audit" / "model" / "text.zst"
    assert model.stat().st_size < 600_000
    text = subprocess.run(["zstd", "-dc", model], capture_output=True, check=True).stdout
    pieces = {text[at : at + 40] for at in range(len(text) - 40)}
    assert not [at for at in range(len(PROSE) - 40) if PROSE[at : at + 40] in pieces]
