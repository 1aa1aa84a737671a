"""Writes policies and runs `plait policy` on the hosts of a test."""

import json

from hosts import PLAIT


def chain(name="chain", hook="ingress", select="any", actors='["record"]', **more) -> str:
    """A chain in TOML."""
    lines = [f'name = "{name}"', f'hook = "{hook}"', f"select = '{select}'", f"actors = {actors}"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    return "\n".join(["", "[[chains]]", *lines, ""])


def policy(*chains: str) -> str:
    return "\n".join(['name = "test"', 'interfaces = ["*"]', *chains])


def both_hooks(select="any", actors='["record"]', **more) -> str:
    """A policy with the same chain at either hook, which names it."""
    return policy(*(chain(hook, hook, select, actors, **more) for hook in ("ingress", "egress")))


def plait(host, *arguments, code=0) -> str:
    """The output of `plait policy`; if it is expected to fail, its error."""
    done = host.run(PLAIT, "policy", *arguments, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def load(host, text, *options, name="policy", code=0) -> str:
    """Loads a policy from a file of this name, which names the policy unless the text does."""
    file = host.directory / f"{name}.toml"
    file.write_text(text)
    return plait(host, "load", file, *options, code=code)


def stats(host) -> dict:
    return json.loads(plait(host, "stats", "--json"))


def counted(host) -> list[dict]:
    """The counters of the chains of the first policy."""
    return stats(host)["policies"][0]["chains"]


def listed(host) -> dict:
    return json.loads(plait(host, "list", "--json"))


def hits(host) -> list[int]:
    """The hits of each chain's actors; asserts that none failed."""
    chains = [each for policy in stats(host)["policies"] for each in policy["chains"]]
    assert not any(actor["errors"] for each in chains for actor in each["actors"]), chains
    return [sum(actor["hits"] for actor in each["actors"]) for each in chains]
