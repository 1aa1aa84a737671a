//! Creates cgroups on the running kernel.

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plait_linux::cgroup::{self, Cgroup};

/// Serializes the tests, as moving the process affects all of them.
fn serialize() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn create(test: &str, role: &str) -> Option<Cgroup> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP {test}: creating cgroups requires root");
        return None;
    }
    Some(Cgroup::create_below_current(role).expect("cgroup is created"))
}

fn current() -> String {
    let table = std::fs::read_to_string("/proc/self/cgroup").expect("/proc is readable");
    table.lines().find_map(|line| line.strip_prefix("0::")).expect("file contains the cgroup").to_owned()
}

#[test]
fn moves_processes_and_is_removed_when_dropped() {
    let _lock = serialize();
    let Some(cgroup) = create("moves_processes_and_is_removed_when_dropped", "moves") else { return };
    let before = current();
    cgroup.enter().expect("process enters the cgroup");
    assert!(current().ends_with(cgroup.name()));
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("process starts");
    let mut inside = cgroup.processes().expect("processes are listed");
    inside.sort_unstable();
    let mut expected = vec![std::process::id(), child.id()];
    expected.sort_unstable();
    assert_eq!(inside, expected);
    child.kill().expect("process ends");
    child.wait().expect("process ends");
    let name = cgroup.name().to_owned();
    drop(cgroup);
    let again = Cgroup::create_below_current("moves").expect("name is free");
    assert_eq!(again.name(), name);
    again.enter().expect("process enters the cgroup");
    drop(again);
    assert_eq!(current(), before, "the process left it when it was dropped");
    assert!(!directory().join(&name).exists());
}

#[test]
fn takes_the_place_of_a_killed_process_with_the_same_id() {
    let _lock = serialize();
    let Some(probe) = create("takes_the_place_of_a_killed_process_with_the_same_id", "probe") else { return };
    let left = format!("plait-{}-again", std::process::id());
    let child = directory().join(&left).join(format!("plait-{}-program", std::process::id()));
    std::fs::create_dir_all(&child).expect("cgroups can be created");
    let again = Cgroup::create_below_current("again").expect("what is left is removed");
    assert!(!child.exists());
    // But not that of this process.
    assert!(Cgroup::create_below_current("again").is_err());
    drop((again, probe));
    assert!(!directory().join(&left).exists());
}

#[test]
fn another_name_is_used_while_others_are_in_the_cgroup() {
    let _lock = serialize();
    let test = "another_name_is_used_while_others_are_in_the_cgroup";
    let Some(probe) = create(test, "probe") else { return };
    let taken = directory().join(format!("plait-{}-taken", std::process::id()));
    std::fs::create_dir(&taken).expect("cgroup is created");
    // As the successor of a gateway that ended.
    let mut inside = Command::new("sleep").arg("60").spawn().expect("process starts");
    std::fs::write(taken.join("cgroup.procs"), inside.id().to_string()).expect("process enters the cgroup");
    let own = Cgroup::create_below_current("taken").expect("another name is used");
    assert_eq!(own.name(), format!("plait-{}-taken-2", std::process::id()));
    own.enter().expect("process enters the cgroup");
    let name = own.name().to_owned();
    drop((own, probe));
    assert!(taken.is_dir() && !directory().join(name).exists());
    inside.kill().expect("process ends");
    inside.wait().expect("process ends");
    drop(Cgroup::create_below_current("taken").expect("what is left is removed"));
    assert!(!taken.exists());
}

#[test]
fn cleaning_removes_only_empty_cgroups_of_dead_processes() {
    let _lock = serialize();
    let Some(alive) = create("cleaning_removes_only_empty_cgroups_of_dead_processes", "alive") else {
        return;
    };
    // The shell creates a cgroup named after itself and exits without removing it, like a killed process.
    let mut shell = Command::new("sh")
        .args(["-c", "mkdir /proc/self/fd/0/plait-$$-dead && echo plait-$$-dead"])
        .stdin(std::fs::File::open(directory()).expect("cgroup of this process opens"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("shell starts");
    assert!(shell.wait().expect("process ends").success());
    let name = format!("plait-{}-dead", shell.id());
    let mut inside = Command::new("sleep").arg("60").spawn().expect("process starts");
    std::fs::write(directory().join(&name).join("cgroup.procs"), inside.id().to_string())
        .expect("process enters the cgroup");
    cgroup::clean_leftovers().expect("cleaning succeeds");
    assert!(directory().join(&name).is_dir(), "it stays while a process is inside");
    inside.kill().expect("process ends");
    inside.wait().expect("process ends");
    let removed = cgroup::clean_leftovers().expect("cleaning succeeds");
    assert!(removed.iter().any(|path| path.ends_with(&name)), "{removed:?}");
    assert!(!directory().join(&name).exists());
    assert!(directory().join(alive.name()).is_dir());
}

#[test]
fn cleaning_spares_cgroups_that_are_locked() {
    let _lock = serialize();
    if !rustix::process::geteuid().is_root() {
        println!("SKIP cleaning_spares_cgroups_that_are_locked: creating cgroups requires root");
        return;
    }
    // As one of a container's process, whose id is of no process here.
    let path = directory().join("plait-4194304-locked");
    std::fs::create_dir(&path).expect("cgroup is created");
    let creator = std::fs::File::open(&path).expect("cgroup opens");
    rustix::fs::flock(&creator, rustix::fs::FlockOperation::LockShared).expect("cgroup is locked");
    cgroup::clean_leftovers().expect("cleaning succeeds");
    assert!(path.is_dir(), "it stays while it is locked");
    drop(creator);
    cgroup::clean_leftovers().expect("cleaning succeeds");
    assert!(!path.exists());
}

/// The path of this process's cgroup in a visible mount.
fn directory() -> std::path::PathBuf {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is readable");
    let line = table.lines().find(|line| line.contains(" - cgroup2 ")).expect("cgroup2 is mounted");
    let mount = line.split(' ').nth(4).expect("line has a mount point");
    std::path::PathBuf::from(mount).join(current().trim_start_matches('/'))
}

#[test]
fn works_without_a_visible_mount() {
    let _lock = serialize();
    if !rustix::process::geteuid().is_root() {
        println!("SKIP works_without_a_visible_mount: hiding the mount requires root");
        return;
    }
    // On a separate thread, so that the other tests keep their mount namespace.
    std::thread::spawn(|| {
        let flags = rustix::thread::UnshareFlags::NEWNS | rustix::thread::UnshareFlags::FS;
        // SAFETY: neither flag unshares the table of file descriptors.
        unsafe { rustix::thread::unshare_unsafe(flags) }.expect("mount namespace is private");
        let private =
            rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).expect("mount namespace is private");
        rustix::mount::unmount("/sys", rustix::mount::UnmountFlags::DETACH).expect("/sys is unmounted");
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("/proc is readable");
        assert!(!table.contains(" - cgroup2 "), "{table}");
        let cgroup = Cgroup::create_below_current("hidden").expect("cgroup is created");
        let mut child = Command::new("sleep").arg("60").spawn().expect("process starts");
        cgroup.add(child.id()).expect("process enters the cgroup");
        assert_eq!(cgroup.processes().expect("processes are listed"), [child.id()]);
        child.kill().expect("process ends");
        child.wait().expect("process ends");
    })
    .join()
    .expect("test thread succeeds");
}
