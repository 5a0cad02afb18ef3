//! Programs: their lines, their signals and their end.

use std::io::stdin;
use std::net::TcpStream;

use tidegate_testkit::{Flavour, Process, Redis, Tool, lacking, wait_for};

fn shell(script: &str) -> Process {
    let mut command = Process::command("sh");
    command.args(["-c", script]);
    Process::spawn(command)
}

#[test]
fn lines_of_both_streams_are_handed_out_once_and_in_order() {
    let process =
        shell("echo one; echo two; echo three; echo note >&2; read word; echo $word; exit 7");
    assert_eq!(process.stdout().next().as_deref(), Some("one"));
    assert_eq!(process.stdout().find("th"), "three");
    assert_eq!(process.stderr().find("note"), "note");
    assert!(process.exited().is_none());
    process.say("four");
    assert_eq!(process.stdout().next().as_deref(), Some("four"));
    assert_eq!(process.stdout().next(), None);
    assert_eq!(process.wait().code(), Some(7));
    assert_eq!(process.stdout().tail(2), ["three", "four"]);
}

#[test]
fn signal_is_delivered_to_the_process() {
    let process = shell("trap 'echo caught; exit 3' TERM; echo ready; read word");
    process.stdout().find("ready");
    process.signal("TERM");
    process.stdout().find("caught");
    assert_eq!(process.wait().code(), Some(3));
}

#[test]
fn server_ends_when_the_test_runner_is_killed() {
    if lacking(&[Tool::Server(Flavour::Redis), Tool::Setpriv]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Process::command(std::env::current_exe().unwrap());
    command.env("TMPDIR", folder.path());
    command.args(["--ignored", "--exact", "--nocapture", "process::starts_a_server_and_waits"]);
    let runner = Process::spawn(command);
    let line = runner.stdout().find("server at ");
    let address = line.rsplit(' ').next().unwrap();
    assert!(TcpStream::connect(address).is_ok());
    runner.kill();
    wait_for("the server is gone", || TcpStream::connect(address).err());
}

#[test]
#[ignore = "the runner that another test kills"]
fn starts_a_server_and_waits() {
    let redis = Redis::start();
    println!("server at {}", redis.address());
    stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn process_uses_the_configured_clock_offset() {
    if lacking(&[Tool::Faketime]) {
        return;
    }
    let seconds = |offset: i64| -> i64 {
        let mut command = Process::command("date");
        command.arg("+%s");
        if offset != 0 {
            Process::skew(&mut command, offset);
        }
        Process::spawn(command).stdout().next().unwrap().parse().unwrap()
    };
    for offset in [300, -300] {
        let (before, shown, after) = (seconds(0), seconds(offset), seconds(0));
        assert!((before..=after).contains(&(shown - offset)), "{before} {shown} {after}");
    }
}
