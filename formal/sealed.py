#!/usr/bin/env python3
"""The handshake of `sealed` and its first records; the attacker is absent, listens or is active on each path.

Prints a table as docs/reference/threat-model.md has it; exit status 1 if a cell is not as expected there. With
--weakened it judges versions that lack one part each: what breaks then is what the part is for.

Any number of initiators and responders run at once. The attacker besides is a client of the responder's,
by any path and mixed with others' messages: a responder also stands where everything is his. Points of
low order exist. What is asked:

- secrecy of each direction's first record, of the responder's also when it answers strangers;
- agreement: an end that accepts agrees with an end that got as far, on session id, offer, choice,
  MPTCP's keys, ephemeral keys and shares. Both ephemeral keys are fresh, so no two acceptances agree
  with one;
- that a record which opens was sealed by the other end of that session.

Taken as given: hashes, HKDF and the AEAD are ideal, any string is a public key. The attacker is given
more than he would have: public keys, session ids and MPTCP's keys, wherever he is, and connections on
one path are not kept apart. Left out: Noise's first tag, whose key is public; the order of records;
lengths; times; and that an attacker can always end a session.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from horn import Clause, Term, saturate

PLACES = ("absent", "listening", "active")
LOW = ("low",)
PAYLOAD, REPLY = ("payload",), ("reply",)
OFFERS = {"both": ("aes", "chacha"), "chacha only": ("chacha",)}
WEAKENED = {
    "hash": "confirmations leave out the handshake hash",
    "confirmations": "confirmations are not looked at",
    "psk": "the key leaves out the shares",
    "offer": "the prologue leaves out the offer",
    "keys": "the prologue leaves out MPTCP's keys",
    "role": "confirmations leave out the role",
    "path": "confirmations leave out the path",
    "session": "witnesses are not matched by session id, nor is it in the keys",
}
# Variables of the clauses below, by what they stand for.
S, R, CHOICE, KI, KR, SID, THEIRS, MESSAGE = range(8)
FIRST_SHARE = 10


class Model:
    """The clauses of one cell."""

    def __init__(self, places: tuple[str, ...], lacks: str | None = None):
        self.places, self.lacks = places, lacks
        self.paths = range(1, len(places))
        self.clauses: list[Clause] = []
        self.attacker()
        for offer in OFFERS:
            self.initiator(offer)
        ends = itertools.product(*((path, None) for path in range(len(places))))
        for number, where in enumerate(ends):
            self.responder(tuple(where), tuple(self.paths), f"{number}")
        if self.paths:
            # Who claims to have no witness is answered, too.
            self.responder((0,), (), "alone")
            self.responder((None,), (), "alone net")

    # What goes by a path, and what one must have to take it from there.

    def put(self, where: int | None, message: Term, after: list):
        place = "active" if where is None else self.places[where]
        if place != "active":
            self.clauses.append((tuple(after), (f"path {where}", message)))
        if place != "absent":
            self.clauses.append((tuple(after), ("att", message)))

    def got(self, where: int | None, message: Term) -> Term:
        active = where is None or self.places[where] == "active"
        return ("att", message) if active else (f"path {where}", message)

    # What both ends compute.

    def psk(self, sid: Term, shares: Term) -> Term:
        return ("psk", self.salt(sid), ("none",) if self.lacks == "psk" else shares)

    def salt(self, sid: Term) -> Term:
        return ("none",) if self.lacks == "session" else sid

    def confirmation(self, sid: Term, shares: Term, role: str, path: int, handshake: Term) -> Term:
        role = "either" if self.lacks == "role" else role
        path = 0 if self.lacks == "path" else path
        handshake = ("none",) if self.lacks == "hash" else handshake
        return ("mac", ("ck", self.salt(sid), shares), (role,), (f"path id {path}",), handshake)

    def handshake(self, offer: Term, choice: Term, ki: Term, kr: Term, sid: Term, ei: Term, er: Term,
                  ee: Term, shares: Term) -> tuple[Term, Term, Term, Term]:  # fmt: skip
        """The tag of message 2, the handshake hash, and the keys of both directions."""
        offer = ("none",) if self.lacks == "offer" else offer
        ki, kr = (("none",), ("none",)) if self.lacks == "keys" else (ki, kr)
        hello = ("#hello", sid, (f"{len(shares) - 1} witnesses",))
        chain, psk = ("chain", ei, er, ee), self.psk(sid, shares)
        before = ("hash", ("#prologue", offer, choice, ki, kr, hello), ei, er, ("blind", chain, psk))
        tag = ("tag", ("cipher key", chain, psk), before)
        return tag, ("hash with tag", before, tag), ("forth", chain, psk), ("back", chain, psk)

    # The attacker.

    def attacker(self):
        have = lambda *terms: tuple(("att", term) for term in terms)  # noqa: E731
        # What goes into a function, and what of it he must have; the rest he is taken to know anyhow.
        for made, needed in (
            (("dh", 0, 1), (0,)),
            (("dh", 0, 1), (1,)),
            (("chain", 0, 1, 2), (2,)),
            (("psk", 0, 1), (1,)),
            (("ck", 0, 1), (1,)),
            (("blind", 0, 1), (0, 1)),
            (("cipher key", 0, 1), (0, 1)),
            (("forth", 0, 1), (0, 1)),
            (("back", 0, 1), (0, 1)),
            (("hash", 0, 1, 2, 3), (3,)),
            (("tag", 0, 1), (0, 1)),
            (("hash with tag", 0, 1), (0, 1)),
            (("mac", 0, 1, 2, 3), (0, 3)),
            (("seal", 0, 1), (0, 1)),
            (("point", 0), ()),
        ):
            self.clauses.append((have(*needed), ("att", made)))
        self.clauses.append((have(("seal", 0, 1), 0), ("att", 1)))
        public = ["low", "none", "aes", "chacha", "initiator", "responder", "either", "his", *OFFERS]
        public += [f"path id {path}" for path in range(4)] + [f"{count} witnesses" for count in range(3)]
        self.clauses.extend(((), ("att", (name,))) for name in public)
        self.clauses.append((have(PAYLOAD), ("leaked", PAYLOAD)))
        self.clauses.append((have(REPLY), ("leaked", REPLY)))
        self.clauses.append(
            (have(("reply to", ("point", ("x", 0, 1)), 2)), ("leaked", ("reply to initiator",)))
        )

    # The ends.

    def initiator(self, name: str):
        offer = (name,)
        x, ki, sid = ("x", S, offer), ("ki", S, offer), ("sid", S, offer)
        own = {path: (f"si {path}", S, offer) for path in self.paths}
        ei = ("point", x)
        self.clauses.extend(((), ("att", known)) for known in (ki, sid))
        self.put(0, ("#syn", offer, ki), [])
        self.put(0, ("#hello message", ("#hello", sid, (f"{len(own)} witnesses",)), ei), [])
        for path in self.paths:
            self.put(path, ("#witness", sid, (f"path id {path}",), own[path]), [])
        theirs = {path: FIRST_SHARE + path for path in self.paths}
        shares = ("#shares", *(("#", own[path], theirs[path]) for path in self.paths))
        for chosen in OFFERS[name]:
            # The secret is written as (exponent of ei, exponent of er): it only appears beside these two.
            for er, ee in ((("point", THEIRS), ("dh", x, THEIRS)), (LOW, LOW)):
                choice = (chosen,)
                tag, h, forth, back = self.handshake(offer, choice, ki, KR, sid, ei, er, ee, shares)
                session = ("#session", sid, offer, choice, ki, KR, ei, er, shares)
                before = [self.got(0, ("#syn ack", choice, KR)), self.got(0, ("#reply", er, tag))]
                for path in self.paths:
                    claim = self.confirmation(sid, shares, "responder", path, h)
                    claim = 20 + path if self.lacks == "confirmations" else claim
                    before.append(self.got(path, ("#share", (f"path id {path}",), theirs[path], claim)))
                self.clauses.append((tuple(before), ("accepts initiator", session)))
                after = [*before, ("begin", ("initiator accepts", session))]
                for path in self.paths:
                    confirm = self.confirmation(sid, shares, "initiator", path, h)
                    self.put(path, ("#confirm", (f"path id {path}",), confirm), after)
                sent = [*after, ("begin", ("initiator sends", session, PAYLOAD))]
                self.put(0, ("#record", ("seal", forth, PAYLOAD)), sent)
                opened = [*before, self.got(0, ("#record", ("seal", back, MESSAGE)))]
                self.clauses.append((tuple(opened), ("receives initiator", session, MESSAGE)))

    def responder(self, where: tuple, paths: tuple, name: str):
        """One whose main connection and witnesses come by `where`: a path, or None for the attacker's own."""
        known = None not in where and name != "alone"
        theirs = {path: FIRST_SHARE + path for path in paths}
        for offered, choices in OFFERS.items():
            offer, choice = (offered,), (choices[0],)
            syn = self.got(where[0], ("#syn", offer, KI))
            kr = (f"kr {name}", R, offer, KI)
            self.clauses.append(((), ("att", kr)))
            self.put(where[0], ("#syn ack", choice, kr), [syn])
            for ei in (("point", THEIRS), LOW):
                # What it makes depends on all that it had heard by then.
                heard_by_then = (R, offer, KI, SID, ei, *theirs.values())
                y = (f"y {name}", *heard_by_then)
                own = {path: (f"sr {path} {name}", *heard_by_then) for path in paths}
                ee = LOW if ei == LOW else ("dh", THEIRS, y)
                er = ("point", y)
                shares = ("#shares", *(("#", theirs[path], own[path]) for path in paths))
                tag, h, forth, back = self.handshake(offer, choice, KI, kr, SID, ei, er, ee, shares)
                session = ("#session", SID, offer, choice, KI, kr, ei, er, shares)
                hello = ("#hello", SID, (f"{len(paths)} witnesses",))
                before = [syn, self.got(where[0], ("#hello message", hello, ei))]
                for path in paths:
                    witness = 30 + path if self.lacks == "session" else SID
                    message = ("#witness", witness, (f"path id {path}",), theirs[path])
                    before.append(self.got(where[path], message))
                replied = [*before, ("begin", ("responder replies", session))]
                self.put(where[0], ("#reply", er, tag), replied)
                for path in paths:
                    confirm = self.confirmation(SID, shares, "responder", path, h)
                    self.put(where[path], ("#share", (f"path id {path}",), own[path], confirm), replied)
                heard = list(before)
                for path in paths:
                    confirm = self.confirmation(SID, shares, "initiator", path, h)
                    heard.append(self.got(where[path], ("#confirm", (f"path id {path}",), confirm)))
                answer = REPLY if known else ("reply to", ei, er)
                sent = [*heard, *replied[-1:], ("begin", ("responder sends", session, answer))]
                self.put(where[0], ("#record", ("seal", back, answer)), sent)
                if known:
                    if paths:
                        self.clauses.append((tuple(heard), ("accepts responder", session)))
                    opened = [*heard, self.got(where[0], ("#record", ("seal", forth, MESSAGE)))]
                    self.clauses.append((tuple(opened), ("receives responder", session, MESSAGE)))


# What an end's step must be preceded by at the other end.
PRECEDED = {
    "accepts initiator": "responder replies",
    "accepts responder": "initiator accepts",
    "receives initiator": "responder sends",
    "receives responder": "initiator sends",
}


def judge(places: tuple[str, ...], lacks: str | None = None) -> tuple[str, list[str], float]:
    """A cell's word, what speaks against it, and the seconds it took."""
    started = time.monotonic()
    found = saturate(Model(places, lacks).clauses, enough="leaked")
    against, reached = set(), set()
    for hypotheses, conclusion in found:
        if conclusion[0] == "leaked":
            against.add(f"{conclusion[1][0]} is not secret")
        elif conclusion[0] in PRECEDED:
            reached.add(conclusion[0])
            if ("begin", (PRECEDED[conclusion[0]], *conclusion[1:])) not in hypotheses:
                against.add(f"{conclusion[0]} without {PRECEDED[conclusion[0]]}")
    seconds = time.monotonic() - started
    if against & {f"{secret[0]} is not secret" for secret in (PAYLOAD, REPLY, ("reply to initiator",))}:
        return "broken", sorted(against), seconds
    # Without a witness there is no CONFIRM: a responder knows of the initiator when the first record opens.
    steps = set(PRECEDED) - (set() if len(places) > 1 else {"accepts responder"})
    if reached != steps:
        return "never ends", sorted(steps - reached), seconds
    if against:
        return "broken", sorted(against), seconds
    return ("detected" if "active" in places else "secret"), [], seconds


def expected(places: tuple[str, ...]) -> str:
    if all(place == "active" for place in places):
        return "broken"
    return "detected" if "active" in places else "secret"


def table(paths: int, lacks: str | None, jobs: int) -> bool:
    """Prints a row per cell; whether all are as expected."""
    cells = list(itertools.product(PLACES, repeat=paths))
    print("| main " + "".join(f"| witness {path} " for path in range(1, paths)) + "| sealed |")
    print("|---" * (paths + 1) + "|")
    right = True
    with ProcessPoolExecutor(jobs) as pool:
        for cell, (word, against, seconds) in zip(cells, pool.map(judge, cells, [lacks] * len(cells))):
            right &= word == expected(cell)
            print(f"| {' | '.join(cell)} | {word} |", flush=True)
            print(
                "".join(f"  {claim}\n" for claim in against) + f"  {seconds:.1f} s",
                file=sys.stderr,
                flush=True,
            )
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--paths", type=int, choices=(1, 2, 3), action="append", help="only with as many paths"
    )
    parser.add_argument("--jobs", type=int, default=None, help="cells at once")
    parser.add_argument("--weakened", action="store_true", help="versions that lack a part, with two paths")
    options = parser.parse_args()
    if options.weakened:
        for lacks, name in WEAKENED.items():
            print(f"\n{name}:\n", flush=True)
            table(2, lacks, options.jobs)
        return 0
    right = True
    for paths in options.paths or (1, 2, 3):
        print(f"\n{paths} path{'s' if paths > 1 else ''}:\n", flush=True)
        right &= table(paths, None, options.jobs)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
