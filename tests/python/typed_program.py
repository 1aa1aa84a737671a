"""Uses the package in every way that types matter; checked by mypy, not run."""

import asyncio
import io
from pathlib import Path
from typing import assert_type

import plait
from plait import cc, document, lab, policy


def tables(path: Path) -> int:
    found = plait.analyze([path, str(path), io.BytesIO()], output="analyses", interval=1, progress=print)
    assert_type(found.series, plait.Table)
    assert_type(found.series.column_names, list[str])
    assert_type(found.series.columns, tuple[plait.Column, ...])
    assert_type(found.to_dict()["connections"][0]["subflows"][0]["bytes"]["client_to_server"], int)
    assert_type(found.totals["damaged"], list[document.DamagedCapture])
    found.plot(1, direction="client_to_server")
    found.report(path)
    with path.open("rb") as file:
        return len(plait.analyze(file).connections)


async def awaited() -> plait.Analysis:
    def progress(done: int, total: int | None) -> None:
        print(f"{done} of {total or '?'} bytes")

    return await asyncio.wait_for(plait.analyze_async("capture.pcap", progress=progress), 10)


def labs() -> None:
    with lab.up("lab.toml") as running, cc.enabled("lia"), policy.loaded("policy.toml"):
        host = running.host("client")
        assert_type(host.address("lte1"), str)
        host.run("ping", "-c", "1", host.address("lte1"), check=True)
        for connection in cc.connections():
            assert_type(connection.subflows[0].rtt_ms, float | None)
    results = lab.run("experiment.toml", repetitions=2)
    assert_type(results.valid, bool)
