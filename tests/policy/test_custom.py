"""Custom selectors and actors in C on real traffic, and errors of files that cannot be used."""

import shutil

import pytest
from controllers import joined
from hosts import PLAIT, REPOSITORY, wait_for
from transfers import assert_no_checksum_errors, exchange

from policies import listed, load, plait, stats

EXAMPLES = REPOSITORY / "crates" / "policy" / "examples"
needs_compiler = pytest.mark.skipif(not shutil.which("clang-19"), reason="not installed: clang-19")


def policy(file, *names, hook="egress", select="any", actor=None) -> str:
    custom = "".join(f'[custom.{name}]\nfile = "{file}"\n' for name in names)
    actors = f'["{actor}"]' if actor else "[]"
    return f"""
        name = "custom"
        interfaces = ["eth"]
        {custom}
        [[chains]]
        name = "custom"
        hook = "{hook}"
        select = "{select}"
        actors = {actors}
    """


@needs_compiler
@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_the_example_works_at_both_hooks(pair, hook):
    """XDP or TC at ingress, TC at egress; the actors after it still run."""
    text = policy(
        EXAMPLES / "custom.bpf.c",
        "slow",
        "sample_every_hundredth",
        hook=hook,
        select="not slow",
        actor="sample_every_hundredth",
    )
    load(pair.client, text.replace('["sample_every_hundredth"]', '["sample_every_hundredth", "record"]'))
    exchange(pair, pair.ETH, size=6_000_000)
    (chain,) = stats(pair.client)["policies"][0]["chains"]
    custom, record = chain["actors"]
    assert chain["packets"] == custom["packets"] == record["packets"] > 200
    # Only one of at most two subflows carries data.
    assert custom["packets"] // 100 - 1 <= custom["hits"] <= custom["packets"] // 100
    assert custom["errors"] == 0 and record["hits"] == record["packets"]
    assert_no_checksum_errors(pair)
    plait(pair.client, "unload", "custom")


@needs_compiler
def test_a_custom_actor_modifies_windows_with_valid_checksums(pair, tmp_path):
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
    assert_no_checksum_errors(pair)


@needs_compiler
def test_storage_is_per_subflow_and_per_connection(pair, tmp_path):
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
    custom = "".join(f'[custom.{name}]\nfile = "{file}"\n' for name in ways)
    chains = "".join(
        f'[[chains]]\nname = "{name}"\nhook = "egress"\nselect = "{name}"\nactors = []\n' for name in ways
    )
    load(pair.client, f'name = "custom"\ninterfaces = ["*"]\n{custom}{chains}')
    with pair.capture("eth") as eth, pair.capture("wlan") as wlan:
        exchange(pair, pair.ETH, lambda: wait_for("second subflow", lambda: joined(pair.client)))
    # Joins that the server refuses are subflows, too: Linux 6.1 tries its IPv6 address for a connection that uses IPv4.
    ends = ("ip.src", "ipv6.src", "tcp.srcport")
    subflows = {
        tuple(syn)
        for link in (eth, wlan)
        for syn in link.fields(*ends, where="tcp.flags.syn == 1 and tcp.flags.ack == 0")
    }
    assert len(subflows) >= 2
    counted = {each["name"]: each["packets"] for each in stats(pair.client)["policies"][0]["chains"]}
    assert counted == {"of_subflow": len(subflows), "of_connection": 1}


@needs_compiler
def test_one_program_has_parameters_under_each_name(pair, tmp_path):
    file = tmp_path / "longer.bpf.c"
    file.write_text(
        """
        #include "plait.bpf.h"

        PLAIT_SELECTOR(longer) { return packet->payload > plait_parameter(packet, 0); }
        PLAIT_ACTOR(adds_up) { return plait_parameter(packet, 0) + plait_parameter(packet, 3) == 9 ? PLAIT_HIT : PLAIT_MISS; }

        char _license[] SEC("license") = "GPL";
        """
    )

    def text(limit: int) -> str:
        names = {
            "longer": "parameters = [100]",
            "huge": f'function = "longer"\nparameters = [{limit}]',
            "adds_up": "parameters = [4, 0, 0, 5]",
        }
        custom = "".join(f'[custom.{name}]\nfile = "{file}"\n{rest}\n' for name, rest in names.items())
        chains = "".join(
            f'[[chains]]\nname = "{select}"\nhook = "egress"\nselect = "{select}"\nactors = ["adds_up"]\n'
            for select in ("longer", "huge")
        )
        return f'name = "custom"\ninterfaces = ["eth"]\n{custom}{chains}'

    def counted() -> dict:
        exchange(pair, pair.ETH)
        return {chain["name"]: chain for chain in stats(pair.client)["policies"][0]["chains"]}

    load(pair.client, text(1 << 40))
    chains = counted()
    assert chains["longer"]["packets"] > 0 and chains["huge"]["packets"] == 0
    (actor,) = chains["longer"]["actors"]
    assert actor["hits"] == actor["packets"] == chains["longer"]["packets"]
    load(pair.client, text(100), "--replace")
    assert counted()["huge"]["packets"] > 0


@needs_compiler
def test_policies_share_storage(pair, tmp_path):
    """One policy marks subflows, another, of another file, selects those that are marked."""
    program = '#include "plait.bpf.h"\n{} {{ {} }}\nchar _license[] SEC("license") = "GPL";\n'
    kept = "struct plait_storage *kept = plait_shared_storage(packet);"
    (tmp_path / "marks.bpf.c").write_text(
        program.format("PLAIT_ACTOR(marks)", f"{kept} if (kept) kept->words[3] = 7; return PLAIT_HIT;")
    )
    (tmp_path / "marked.bpf.c").write_text(
        program.format("PLAIT_SELECTOR(marked)", f"{kept} return kept && kept->words[3] == 7;")
    )
    for name, select, actors in (("marks", "any", '"marks"'), ("marked", "marked", "")):
        load(
            pair.client,
            f'name = "{name}"\ninterfaces = ["eth"]\n[custom.{name}]\nfile = "{tmp_path}/{name}.bpf.c"\n'
            f'[[chains]]\nname = "{name}"\nhook = "egress"\nselect = "{select}"\nactors = [{actors}]\n',
        )
    exchange(pair, pair.ETH)
    packets = {
        chain["name"]: chain["packets"]
        for policy in stats(pair.client)["policies"]
        for chain in policy["chains"]
    }
    # Of the only subflow, all packets but the first.
    assert packets["marked"] == packets["marks"] - 1 > 0


@needs_compiler
def test_errors_name_the_file_and_the_reason(pair, tmp_path):
    file = tmp_path / "wrong.bpf.c"
    text = policy(file, "mine", select="mine")
    assert f"cannot read {file}" in load(pair.client, text, code=1)

    file.write_text('#include "plait.bpf.h"\nPLAIT_SELECTOR(mine) { return packet->no_such_thing; }\n')
    error = load(pair.client, text, code=1)
    assert f"{file}:2:" in error and "no member named 'no_such_thing'" in error

    licence = 'char _license[] SEC("license") = "GPL";\n'
    file.write_text(f'#include "plait.bpf.h"\nPLAIT_ACTOR(other) {{ return PLAIT_HIT; }}\n{licence}')
    error = load(pair.client, text, code=1)
    assert "PLAIT_SELECTOR(mine)" in error and "PLAIT_ACTOR(other)" in error

    # The message includes the log of the verifier.
    file.write_text(
        f'#include "plait.bpf.h"\nPLAIT_SELECTOR(mine) {{ return plait_flow(packet)->flags; }}\n{licence}'
    )
    error = load(pair.client, text, code=1)
    assert "cannot load the programs of" in error and "map_value_or_null" in error

    file.rename(tmp_path / "wrong.txt")
    assert "expected a C source" in load(
        pair.client, policy(tmp_path / "wrong.txt", "mine", select="mine"), code=1
    )
    # None of these was loaded.
    assert listed(pair.client)["policies"] == []


def test_without_a_compiler_the_error_names_a_remedy(pair):
    text = policy(EXAMPLES / "template.bpf.c", "my_actor", actor="my_actor")
    file = pair.directory / "custom.toml"
    file.write_text(text)
    done = pair.client.run("env", "PLAIT_CLANG=no-such-compiler", PLAIT, "policy", "load", file, text=True)
    assert done.returncode == 1
    assert "cannot run no-such-compiler" in done.stderr and "clang-19" in done.stderr
