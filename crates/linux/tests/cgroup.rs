//! Cgroups on the running kernel.

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plait_linux::cgroup::{self, Cgroup};

/// Moving the process concerns all tests in it, so they take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn create(test: &str, role: &str) -> Option<Cgroup> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: making cgroups takes root");
        return None;
    }
    Some(Cgroup::create_below_current(role).expect("a cgroup"))
}

fn current() -> String {
    let table = std::fs::read_to_string("/proc/self/cgroup").expect("/proc");
    table.lines().find_map(|line| line.strip_prefix("0::")).expect("a cgroup").to_owned()
}

#[test]
fn processes_are_moved_in_and_out_and_the_cgroup_goes() {
    let _turn = turn();
    let Some(cgroup) = create("processes_are_moved_in_and_out_and_the_cgroup_goes", "moves") else { return };
    let before = current();
    cgroup.enter().expect("inside");
    assert!(current().ends_with(cgroup.name()));
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("a process");
    let mut inside = cgroup.processes().expect("processes");
    inside.sort_unstable();
    let mut expected = vec![std::process::id(), child.id()];
    expected.sort_unstable();
    assert_eq!(inside, expected);
    cgroup.leave().expect("outside");
    assert_eq!(current(), before);

    child.kill().expect("its end");
    child.wait().expect("its end");
    let name = cgroup.name().to_owned();
    drop(cgroup);
    let again = Cgroup::create_below_current("moves").expect("the name is free");
    assert_eq!(again.name(), name);
    again.enter().expect("inside");
    drop(again);
    assert_eq!(current(), before, "whoever drops it has left it");
    assert!(!directory().join(&name).exists());
}

#[test]
fn leftovers_of_dead_processes_go_and_others_stay() {
    let _turn = turn();
    let Some(alive) = create("leftovers_of_dead_processes_go_and_others_stay", "alive") else { return };
    // A process of its own makes one, and is killed before it can remove it: the shell stands in for it.
    let mut shell = Command::new("sh")
        .args(["-c", "mkdir /proc/self/fd/0/plait-$$-dead && echo plait-$$-dead"])
        .stdin(std::fs::File::open(directory()).expect("the cgroup of this process"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    assert!(shell.wait().expect("its end").success());
    let name = format!("plait-{}-dead", shell.id());
    let mut inside = Command::new("sleep").arg("60").spawn().expect("a process");
    std::fs::write(directory().join(&name).join("cgroup.procs"), inside.id().to_string())
        .expect("a process inside");
    cgroup::clean_leftovers().expect("a cleaning");
    assert!(directory().join(&name).is_dir(), "it stays while a program that it was made for runs");
    inside.kill().expect("its end");
    inside.wait().expect("its end");
    let removed = cgroup::clean_leftovers().expect("a cleaning");
    assert!(removed.iter().any(|path| path.ends_with(&name)), "{removed:?}");
    assert!(!directory().join(&name).exists());
    assert!(directory().join(alive.name()).is_dir());
}

/// The directory of this process' cgroup where the file system has a visible place.
fn directory() -> std::path::PathBuf {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc");
    let line = table.lines().find(|line| line.contains(" - cgroup2 ")).expect("a visible cgroup2 mount");
    let mount = line.split(' ').nth(4).expect("a mount point");
    std::path::PathBuf::from(mount).join(current().trim_start_matches('/'))
}

#[test]
fn a_hidden_file_system_is_no_obstacle() {
    let _turn = turn();
    if !rustix::process::geteuid().is_root() {
        println!("SKIP a_hidden_file_system_is_no_obstacle: hiding it takes root");
        return;
    }
    // On a thread, as mounts can be hidden from a part of a process only.
    std::thread::spawn(|| {
        let flags = rustix::thread::UnshareFlags::NEWNS | rustix::thread::UnshareFlags::FS;
        // SAFETY: neither flag separates the table of file descriptors.
        unsafe { rustix::thread::unshare_unsafe(flags) }.expect("mounts of our own");
        let quiet = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
        rustix::mount::mount_change("/", quiet).expect("mounts of our own");
        rustix::mount::unmount("/sys", rustix::mount::UnmountFlags::DETACH).expect("no /sys");
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("/proc");
        assert!(!table.contains(" - cgroup2 "), "{table}");
        let cgroup = Cgroup::create_below_current("hidden").expect("a cgroup");
        let mut child = Command::new("sleep").arg("60").spawn().expect("a process");
        cgroup.add(child.id()).expect("a process inside");
        assert_eq!(cgroup.processes().expect("processes"), [child.id()]);
        child.kill().expect("its end");
        child.wait().expect("its end");
    })
    .join()
    .expect("the test");
}
