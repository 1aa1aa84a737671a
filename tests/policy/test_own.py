"""Selectors and actors of the user's own, in C, on real traffic; and what is said of files that cannot be used."""

import shutil

import pytest
from controllers import joined
from hosts import PLAIT, REPOSITORY, wait_for
from transfers import exchange, without_checksum_errors

from policies import listed, load, plait, stats

EXAMPLES = REPOSITORY / "crates" / "policy" / "examples"
needs_compiler = pytest.mark.skipif(not shutil.which("clang-19"), reason="not installed: clang-19")


def policy(file, *names, hook="egress", select="any", actor=None) -> str:
    own = "".join(f'[own.{name}]\nfile = "{file}"\n' for name in names)
    actors = f'["{actor}"]' if actor else "[]"
    return f"""
        name = "own"
        interfaces = ["eth"]
        {own}
        [[chains]]
        name = "own"
        hook = "{hook}"
        select = "{select}"
        actors = {actors}
    """


@needs_compiler
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_the_example_works_at_both_hooks(pair, hook):
    """By XDP where packets come in, by TC where they go out; other actors go on after it."""
    text = policy(
        EXAMPLES / "own.bpf.c",
        "slow",
        "tell_every_hundredth",
        hook=hook,
        select="not slow",
        actor="tell_every_hundredth",
    )
    load(pair.client, text.replace('["tell_every_hundredth"]', '["tell_every_hundredth", "record"]'))
    exchange(pair, pair.ETH, size=6_000_000)
    (chain,) = stats(pair.client)["policies"][0]["chains"]
    own, record = chain["actors"]
    assert chain["packets"] == own["packets"] == record["packets"] > 200
    # One subflow carries, the other never does: there are two at most.
    assert own["packets"] // 100 - 1 <= own["hits"] <= own["packets"] // 100
    assert own["errors"] == 0 and record["hits"] == record["packets"]
    without_checksum_errors(pair)
    plait(pair.client, "unload", "own")


@needs_compiler
def test_an_actor_of_ones_own_changes_windows_and_checksums_stay_right(pair, tmp_path):
    file = tmp_path / "small.bpf.c"
    file.write_text(
        """
        #include "plait.bpf.h"

        PLAIT_ACTOR(small)
        {
            if (packet->window <= 20 || packet->kinds & PLAIT_IS_SYN)
                return PLAIT_MISS;
            return plait_set_window(context, packet, 20) ? PLAIT_ERROR : PLAIT_HIT;
        }

        char _license[] SEC("license") = "GPL";
        """
    )
    load(pair.client, policy(file, "small", actor="small"))
    exchange(pair, pair.ETH)
    (actor,) = stats(pair.client)["policies"][0]["chains"][0]["actors"]
    assert actor["hits"] > 10 and actor["errors"] == 0
    without_checksum_errors(pair)


@needs_compiler
def test_something_is_kept_for_each_subflow_and_each_connection(pair, tmp_path):
    file = tmp_path / "first.bpf.c"
    selector = """
        PLAIT_SELECTOR({name})
        {{
            struct plait_storage *kept = {kept}(packet);

            return kept && !kept->words[{name}_word]++;
        }}
    """
    ways = {"of_subflow": "plait_storage", "of_connection": "plait_connection_storage"}
    selectors = "".join(selector.format(name=name, kept=kept) for name, kept in ways.items())
    licence = 'char _license[] SEC("license") = "GPL";'
    words = "enum { of_subflow_word, of_connection_word };"
    file.write_text(f'#include "plait.bpf.h"\n{words}\n{selectors}\n{licence}\n')
    own = "".join(f'[own.{name}]\nfile = "{file}"\n' for name in ways)
    chains = "".join(
        f'[[chains]]\nname = "{name}"\nhook = "egress"\nselect = "{name}"\nactors = []\n' for name in ways
    )
    load(pair.client, f'name = "own"\ninterfaces = ["*"]\n{own}{chains}')
    exchange(pair, pair.ETH, lambda: wait_for("second subflow", lambda: joined(pair.client)))
    counted = {each["name"]: each["packets"] for each in stats(pair.client)["policies"][0]["chains"]}
    assert counted == {"of_subflow": 2, "of_connection": 1}


@needs_compiler
def test_what_cannot_be_used_is_named(pair, tmp_path):
    file = tmp_path / "wrong.bpf.c"
    text = policy(file, "mine", select="mine")
    assert f"cannot read {file}" in load(pair.client, text, code=1)

    file.write_text('#include "plait.bpf.h"\nPLAIT_SELECTOR(mine) { return packet->no_such_thing; }\n')
    said = load(pair.client, text, code=1)
    assert f"{file}:2:" in said and "no member named 'no_such_thing'" in said

    licence = 'char _license[] SEC("license") = "GPL";\n'
    file.write_text(f'#include "plait.bpf.h"\nPLAIT_ACTOR(other) {{ return PLAIT_HIT; }}\n{licence}')
    said = load(pair.client, text, code=1)
    assert "PLAIT_SELECTOR(mine)" in said and "PLAIT_ACTOR(other)" in said

    # The verifier's reason is in what is said.
    file.write_text(
        f'#include "plait.bpf.h"\nPLAIT_SELECTOR(mine) {{ return plait_flow(packet)->flags; }}\n{licence}'
    )
    said = load(pair.client, text, code=1)
    assert "the kernel does not load" in said and "map_value_or_null" in said

    file.rename(tmp_path / "wrong.txt")
    assert "expected a C source" in load(
        pair.client, policy(tmp_path / "wrong.txt", "mine", select="mine"), code=1
    )
    # Nothing of all that is loaded.
    assert listed(pair.client)["policies"] == []


def test_without_a_compiler_it_says_what_to_do(pair):
    text = policy(EXAMPLES / "template.bpf.c", "my_actor", actor="my_actor")
    file = pair.directory / "own.toml"
    file.write_text(text)
    done = pair.client.run("env", "PLAIT_CLANG=no-such-compiler", PLAIT, "policy", "load", file, text=True)
    assert done.returncode == 1
    assert "cannot run no-such-compiler" in done.stderr and "clang-19" in done.stderr
