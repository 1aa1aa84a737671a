"""`plait.lab`: a lab is removed with the object, program or interpreter that built it."""

import multiprocessing
import os
import signal
import subprocess
import threading

import pytest
from hosts import PLAIT, tool, wait_for
from labs import PAIR, PAIR_TOML, installed, is_running, lab, left_of, needs_labs, ping, program, sleeping  # noqa: F401


@needs_labs
def test_down_terminates_started_programs(lab):
    with lab.up(PAIR) as pair:
        loop = "echo up; while :; do sleep 0.1; done"
        trapping = [f"trap 'echo ended; exit 0' TERM; {loop}", f"trap '' TERM; {loop}"]
        listening, stubborn = (
            pair.start("server", "sh", "-c", program, stdout=subprocess.PIPE, text=True)
            for program in trapping
        )
        assert listening.stdout.readline() == stubborn.stdout.readline() == "up\n"
    assert listening.returncode == 0 and listening.stdout.read() == "ended\n"
    assert stubborn.returncode == -signal.SIGKILL
    assert not left_of(pair.id)


@needs_labs
def test_using_a_lab_after_down_is_an_error(lab):
    pair = lab.up(PAIR)
    pair.down()
    pair.down()
    for use in (lambda: ping(pair), pair.statistics, lambda: pair.inject("lte1", "blackhole")):
        with pytest.raises(lab.Error, match=f"{pair.id} has ended"):
            use()


@needs_labs
def test_using_a_lab_that_was_removed_elsewhere_is_an_error(lab):
    with lab.up(PAIR) as pair:
        tool(PLAIT, "lab", "down", "--lab", pair.id)
        with pytest.raises(lab.Error, match=f"{pair.id} has ended"):
            wait_for("error", lambda: ping(pair) and None)


@needs_labs
def test_using_a_lab_whose_supervisor_was_killed_is_an_error(lab):
    with pytest.raises(lab.Error, match="exited unexpectedly"), lab.up(PAIR) as pair:
        os.kill(int(pair.id), signal.SIGKILL)
        wait_for("end of the process", lambda: not is_running(pair.id))
        ping(pair)
    tool(PLAIT, "doctor", "--clean")
    assert not left_of(pair.id)


@needs_labs
def test_exception_in_the_with_block_removes_the_lab(lab):
    with pytest.raises(ZeroDivisionError), lab.up(PAIR) as pair:
        running = pair.start("client", "sleep", "1000")
        1 / 0  # noqa: B018
    assert running.returncode == -signal.SIGTERM
    assert not left_of(pair.id)


PROGRAM = """
import sys
from plait import lab
pair = lab.up(text=sys.stdin.readline().replace(";", "\\n"))
pair.start("client", "sleep", "1000")
print(pair.id, flush=True)
"""


def begin(program, rest: str) -> tuple[subprocess.Popen, str]:
    """Starts an interpreter that builds a lab; returns it and the id of the lab."""
    running = program(PROGRAM + rest)
    running.stdin.write(PAIR_TOML.replace("\n", ";") + "\n")
    running.stdin.flush()
    lab_id = running.stdout.readline().strip()
    assert lab_id, running.stderr.read()
    assert left_of(lab_id)
    return running, lab_id


@needs_labs
@pytest.mark.parametrize("rest", ["", "1 / 0", "sys.exit(3)", "del pair; sys.stdin.read()"])
def test_lab_is_removed_with_its_object_or_interpreter(program, rest):
    running, lab_id = begin(program, rest)
    if rest.startswith("del"):
        wait_for("end of the lab", lambda: not left_of(lab_id))
        running.stdin.close()
    running.wait(60)
    assert not left_of(lab_id)


@needs_labs
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_killing_the_interpreter_removes_the_lab(program, how):
    running, lab_id = begin(program, "sys.stdin.read()")
    running.send_signal(signal.Signals[how])
    running.wait(60)
    wait_for("end of the lab", lambda: not left_of(lab_id))


@needs_labs
def test_ctrl_c_interrupts_a_program_but_not_the_lab(program):
    rest = """
try:
    pair.run("client", "sleep", "1000", stdout=None)
except KeyboardInterrupt:
    print(pair.run("server", "echo", "still there").stdout, flush=True)
"""
    running, lab_id = begin(program, rest)
    wait_for("second one to sleep", lambda: sleeping(f"plait-{lab_id}-client") == 2)
    running.send_signal(signal.SIGINT)
    assert running.stdout.readline() == "still there\n"
    running.wait(60)
    assert not left_of(lab_id)


# It forks: parallel workers have threads of their own.
@pytest.mark.alone
@needs_labs
def test_lab_survives_the_end_of_a_thread_and_of_a_fork(lab):
    made = []
    thread = threading.Thread(target=lambda: made.append(lab.up(PAIR)))
    thread.start()
    thread.join()
    with made[0] as pair:
        fork = multiprocessing.get_context("fork").Process(target=pair.down)
        fork.start()
        fork.join()
        assert fork.exitcode == 0
        assert ping(pair).returncode == 0
    assert not left_of(pair.id)
