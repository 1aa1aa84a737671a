#!/usr/bin/env python3
"""Builds text.zst, the training text of the attack on xor64. README.md lists the sources and their licences."""

import gzip
import html
import pathlib
import random
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent.parent
PACKAGES = ("dict-jargon", "dict-devil", "sqlite3-doc")
# The text that the tests attack must not be part of the training text.
HELD_OUT = REPOSITORY / "tests" / "data" / "prose.txt"
# How many consecutive characters the two may not share.
COMMON = 40


def main():
    with tempfile.TemporaryDirectory() as directory:
        packages = fetch(pathlib.Path(directory))
        text = compose(packages)
    check_held_out(text)
    packed = subprocess.run(
        ["zstd", "--ultra", "-22", "-c"], input=text, capture_output=True, check=True
    ).stdout
    (HERE / "text.zst").write_bytes(packed)
    print(f"{len(text)} bytes of text, {len(packed)} bytes compressed")


def fetch(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    """Downloads and unpacks the packages without installing them."""
    unpacked = {}
    for package in PACKAGES:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=directory, check=True)
        (archive,) = directory.glob(f"{package}_*.deb")
        unpacked[package] = directory / package
        subprocess.run(["dpkg-deb", "-x", archive, unpacked[package]], check=True)
    return unpacked


def compose(packages: dict[str, pathlib.Path]) -> bytes:
    """The text: samples of all sources."""
    pages = sorted(packages["sqlite3-doc"].rglob("*.html"))
    pages = [page.read_text(errors="replace") for page in pages if page.stat().st_size < 200_000]
    prose = [without_markup(page) for page in pages]
    parts = [
        sample(dictionary(packages["dict-jargon"]), 600_000),
        sample(dictionary(packages["dict-devil"]), 350_000),
        sample("\n\n".join(prose), 240_000),
        sample("\n".join(pages), 180_000),
        headers(200),
    ]
    return b"\n".join(typographic(part).encode() for part in parts)


def sample(text: str, size: int) -> str:
    """Evenly spaced pieces of 4,000 characters, `size` characters in total."""
    pieces = [text[at : at + 4000] for at in range(0, len(text), 4000)]
    wanted = max(1, size // 4000)
    if len(pieces) <= wanted:
        return text
    return "".join(pieces[number * len(pieces) // wanted] for number in range(wanted))


def dictionary(directory: pathlib.Path) -> str:
    """The text of a dictd dictionary."""
    (file,) = directory.rglob("*.dict.dz")
    text = gzip.decompress(file.read_bytes()).decode(errors="replace")
    return reflow(text)


def without_markup(page: str) -> str:
    page = re.sub(r"<(script|style|pre).*?</\1>", " ", page, flags=re.DOTALL | re.IGNORECASE)
    page = re.sub(r"</?(p|div|h\d|li|tr|dt|dd|br|blockquote)\b[^>]*>", "\n\n", page, flags=re.IGNORECASE)
    page = html.unescape(re.sub(r"<[^>]*>", "", page))
    return reflow(page)


def reflow(text: str) -> str:
    """Every third paragraph wrapped at 72 characters as in mail, the others on one line as on web pages."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text)]
    paragraphs = [paragraph for paragraph in paragraphs if len(paragraph) > 40]
    return "\n\n".join(wrap(text) if number % 3 == 0 else text for number, text in enumerate(paragraphs))


def wrap(paragraph: str) -> str:
    lines, line = [], ""
    for word in paragraph.split():
        if line and len(line) + 1 + len(word) > 72:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def typographic(text: str) -> str:
    """Typographic quotation marks and dashes in every tenth paragraph, as on much of the web."""
    paragraphs = text.split("\n\n")
    for number in range(0, len(paragraphs), 10):
        if "<" not in paragraphs[number]:
            opened = re.sub(r'(^|[\s(])"', "\\1\u201c", paragraphs[number])
            paragraphs[number] = (
                opened.replace('"', "\u201d").replace("'", "\u2019").replace(" -- ", " \u2014 ")
            )
    return "\n\n".join(paragraphs)


def http_date(generator: random.Random) -> str:
    days = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return (
        f"{generator.choice(days)}, {generator.randint(1, 28):02} {generator.choice(months)} {generator.randint(2015, 2027)} "
        f"{generator.randint(0, 23):02}:{generator.randint(0, 59):02}:{generator.randint(0, 59):02} GMT"
    )


def headers(count: int) -> str:
    """Synthetic requests and responses."""
    generator = random.Random("plait")
    agents = (
        "curl/7.88.1",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
        "Wget/1.21.3",
    )
    types = ("text/html; charset=utf-8", "text/html", "text/plain", "application/json", "image/png", "image/jpeg", "text/css",
             "application/javascript", "application/octet-stream")  # fmt: skip
    servers = ("nginx/1.22.1", "nginx", "Apache/2.4.57 (Debian)", "Apache")
    statuses = (
        "200 OK",
        "200 OK",
        "200 OK",
        "304 Not Modified",
        "404 Not Found",
        "302 Found",
        "206 Partial Content",
    )
    out = []
    for _ in range(count):
        name = generator.choice(("index.html", "main.css", "app.js", "logo.png", "feed.xml", "data.json", ""))
        out.append(
            f"{generator.choice(('GET', 'GET', 'HEAD', 'POST'))} /{name} HTTP/1.1\r\nHost: www.example.{generator.choice(('com', 'org', 'net'))}\r\n"
            f"User-Agent: {generator.choice(agents)}\r\nAccept: */*\r\nAccept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\n"
            f"Connection: keep-alive\r\n\r\n"
        )
        out.append(
            f"HTTP/1.1 {generator.choice(statuses)}\r\nServer: {generator.choice(servers)}\r\nDate: {http_date(generator)}\r\n"
            f"Content-Type: {generator.choice(types)}\r\nContent-Length: {generator.randint(10, 999999)}\r\nLast-Modified: {http_date(generator)}\r\n"
            f'Connection: {generator.choice(("keep-alive", "close"))}\r\nETag: "{generator.getrandbits(32):08x}-{generator.getrandbits(16):x}"\r\n'
            f"Accept-Ranges: bytes\r\n\r\n"
        )
    return "".join(out)


def check_held_out(text: bytes):
    held_out = HELD_OUT.read_bytes()
    known = {text[at : at + COMMON] for at in range(len(text) - COMMON)}
    for at in range(len(held_out) - COMMON):
        if held_out[at : at + COMMON] in known:
            sys.exit(f"expected no text of {HELD_OUT.name}, got {held_out[at : at + COMMON]!r}")


if __name__ == "__main__":
    main()
