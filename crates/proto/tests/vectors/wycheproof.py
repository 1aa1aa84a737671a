#!/usr/bin/env python3
"""Writes wycheproof.txt: those of Project Wycheproof's vectors for AEADs (Apache-2.0) that sealed could meet.

The argument is the directory of their aes_gcm_test.json and chacha20_poly1305_test.json. Each line is: cipher, number in
its file, valid or invalid, key, nonce, additional data, plaintext, ciphertext, tag; in hexadecimal, "-" for nothing.
"""

import json
import sys
from pathlib import Path

FILES = {"aes-256-gcm": "aes_gcm_test.json", "chacha20-poly1305": "chacha20_poly1305_test.json"}
FIELDS = ["key", "iv", "aad", "msg", "ct", "tag"]

with (Path(__file__).parent / "wycheproof.txt").open("w") as out:
    for cipher, file in FILES.items():
        for group in json.loads((Path(sys.argv[1]) / file).read_text())["testGroups"]:
            if (group["keySize"], group["ivSize"], group["tagSize"]) == (256, 96, 128):
                for test in group["tests"]:
                    print(cipher, test["tcId"], test["result"], *(test[f] or "-" for f in FIELDS), file=out)
