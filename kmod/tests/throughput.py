#!/usr/bin/python3
"""Throughput of one connection in each mode, relative to plain MPTCP and AES-128-CBC in the program, within one run.

The guest's processor is emulated: do not compare figures of different runs or machines.
"""

import argparse
import os
import socket
import statistics
import time

from behavior import SERVER, listener
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from network import load, set_mode, socket_in, unload

PIECE = 256 << 10


def cipher():
    return Cipher(algorithms.AES128(bytes(16)), modes.CBC(bytes(16)))


def serve(server, encrypted):
    connection = server.accept()[0]
    buffer, total = bytearray(PIECE), 0
    decryptor = cipher().decryptor()
    while count := connection.recv_into(buffer, PIECE, socket.MSG_WAITALL):
        if encrypted:
            decryptor.update(bytes(buffer[:count]))
        total += count
    connection.sendall(total.to_bytes(8, "big"))
    os._exit(0)


def measure(mode, megabytes):
    encrypted = mode == "aes-128-cbc"
    set_mode("plain" if encrypted else mode)
    with listener() as server:
        child = os.fork()
        if not child:
            serve(server, encrypted)
    client = socket_in("A")
    client.connect(SERVER)
    data = bytes(PIECE)
    encryptor = cipher().encryptor()
    start = time.monotonic()
    for _ in range(megabytes * 4):
        client.sendall(encryptor.update(data) if encrypted else data)
    client.shutdown(socket.SHUT_WR)
    assert int.from_bytes(client.recv(8), "big") == megabytes << 20
    seconds = time.monotonic() - start
    client.close()
    os.waitpid(child, 0)
    return megabytes / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    load(loss=None)
    ways = ["plain", "xor64-hmac", "stream", "aes-128-cbc"]
    found = {way: [] for way in ways}
    for _ in range(arguments.rounds):
        for way in ways:
            found[way].append(measure(way, arguments.megabytes))
    plain = statistics.mean(found["plain"])
    for way, rates in found.items():
        mean, sigma = statistics.mean(rates), statistics.stdev(rates)
        print(f"{way:12} {mean:8.1f} MB/s, sigma {sigma:6.1f}, {mean / plain:5.2f} of plain MPTCP")
    unload()


if __name__ == "__main__":
    main()
