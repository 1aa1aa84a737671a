"""A web server by HTTP/3 (QUIC), which nginx of Debian 12 does not have: python http3_server.py DIRECTORY CERTIFICATE KEY ADDRESS..."""

import asyncio
import pathlib
import sys

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".gif": "image/gif"}


class Http3(QuicConnectionProtocol):
    """One connection."""

    directory: pathlib.Path
    http: H3Connection | None = None

    def quic_event_received(self, event):
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        for received in self.http.handle_event(event) if self.http else ():
            if isinstance(received, HeadersReceived):
                self.answer(received.stream_id, dict(received.headers)[b":path"].decode())
        self.transmit()

    def answer(self, stream: int, path: str):
        file = self.directory / path.partition("?")[0].lstrip("/")
        found = file.is_file()
        status, body = (b"200", file.read_bytes()) if found else (b"404", b"")
        kind = TYPES.get(file.suffix, "text/plain").encode()
        headers = [(b":status", status), (b"content-type", kind), (b"content-length", b"%d" % len(body))]
        self.http.send_headers(stream, headers)
        self.http.send_data(stream, body, end_stream=True)


async def main(directory: str, certificate: str, key: str, *addresses: str):
    Http3.directory = pathlib.Path(directory)
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=False)
    configuration.load_cert_chain(certificate, key)
    for address in addresses:
        await serve(address, 443, configuration=configuration, create_protocol=Http3)
    print("listening", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
