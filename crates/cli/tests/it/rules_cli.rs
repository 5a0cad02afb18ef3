//! `tidegate rules`: reads and changes the rules of running servers.

use serde_json::Value;
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Server, exit_code_and_output, run, tidegate};

const REDIS: Tool = Tool::Server(Flavour::Redis);

const FIRST_RULES: &str = "# the first\nrules:\n  - {name: api, per: [user], limit: 2 per 10 days}\n  - {name: all, limit: 9 per 10 days}\n";
const SECOND_RULES: &str = "rules:\n  - {name: api, per: [user], limit: 3 per 10 days}\n  - {name: login, per: [ip], limit: 5 per 10 days}\n";

/// Starts a server with its rules in a Redis.
fn start_server(redis: &Redis) -> Server {
    Server::with_arguments(&["--http", "127.0.0.1:0", "--rules", &redis.url()])
}

/// Runs `tidegate rules` against a server. Returns the exit code, stdout and stderr.
fn run_rules(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    run_rules_at(&server.admin_url(), arguments)
}

fn run_rules_at(url: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut command = tidegate();
    command.args(["rules", "--server", url]).args(arguments).env("USER", "ann");
    exit_code_and_output(command.output().unwrap())
}

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn pushed_version(stdout: &str) -> u64 {
    parse_json(stdout)["version"].as_u64().unwrap()
}

/// Returns how many of ten checks of a user are admitted.
fn count_admitted(server: &Server, user: &str) -> usize {
    let body = format!(r#"{{"rule":"api","client":"{user}"}}"#);
    (0..10).filter(|_| server.check(&body).status == 200).count()
}

#[test]
fn push_prints_its_changes_and_applies_to_every_node() {
    if lacking(&[REDIS]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let (near, far) = (start_server(&redis), start_server(&redis));
    let (first, second) =
        (folder.file("first.yaml", FIRST_RULES), folder.file("second.yaml", SECOND_RULES));

    let (code, stdout, stderr) =
        run_rules(&near, &["push", &first, "--if-version", "0", "--note", "a start – ü%"]);
    assert_eq!((code, pushed_version(&stdout)), (0, 1), "{stderr}");
    assert!(stderr.contains("+ all\n") && stderr.contains("+ api\n"), "{stderr}");
    assert!(stderr.ends_with("version 1 is active: 2 rules\n"), "{stderr}");
    assert_eq!(count_admitted(&near, "alice"), 2);
    assert_eq!(run_rules(&near, &["get"]), (0, FIRST_RULES.to_owned(), "version 1\n".to_owned()));
    wait_for("the other node has version 1", || {
        (run_rules(&far, &["get"]).1 == FIRST_RULES).then_some(())
    });
    assert_eq!(count_admitted(&far, "bob"), 2);

    assert_eq!(run_rules(&near, &["diff", &first]).0, 0);
    let (code, stdout, stderr) = run_rules(&near, &["diff", &second]);
    assert_eq!((code, &*stderr), (1, ""), "{stdout}");
    for line in ["+ login\n", "- all\n", "~ api: limit from 2 per "] {
        assert!(stdout.contains(line), "{line} is not in {stdout}");
    }
    let (code, stdout, stderr) = run_rules(&near, &["push", &second, "--dry-run"]);
    assert_eq!((code, &*stdout), (0, ""));
    assert!(stderr.ends_with("version 1 stays active, nothing was pushed\n"), "{stderr}");
    assert_eq!(pushed_version(&run_rules(&near, &["get", "--json"]).1), 1);

    let (code, stdout, stderr) =
        run_rules(&far, &["push", &second, "--by", "bob", "--note", "more"]);
    assert_eq!((code, pushed_version(&stdout)), (0, 2), "{stderr}");
    assert_eq!(count_admitted(&far, "carol"), 3);
    wait_for("every node has version 2", || {
        let (code, stdout, _) = run_rules(&near, &["status"]);
        let nodes = stdout.lines().skip(1).filter(|line| line.contains(" 2 ")).count();
        (code == 0 && nodes == 2).then_some(())
    });
    assert_eq!(count_admitted(&near, "dave"), 3);

    let (code, stdout, stderr) = run_rules(&near, &["history"]);
    assert_eq!((code, &*stderr), (0, "* is active on this node: version 2\n"));
    let lines: Vec<&str> = stdout.lines().collect();
    let [heading, newest, oldest] = lines.as_slice() else { panic!("{stdout}") };
    assert!(heading.trim_start().starts_with("VERSION"), "{stdout}");
    assert!(newest.starts_with("*  2 ") && newest.ends_with("  more"), "{stdout}");
    assert!(oldest.starts_with("   1 ") && oldest.ends_with("  a start – ü%"), "{stdout}");
    assert!(newest.contains("  bob ") && oldest.contains("  ann@"), "{stdout}");
    let history = parse_json(&run_rules(&near, &["history", "--json", "--limit", "1"]).1);
    assert_eq!(history["versions"].as_array().unwrap().len(), 1);
    assert_eq!(run_rules(&near, &["diff", "1", "2"]).0, 1);
    assert_eq!(run_rules(&near, &["diff", "2", "2"]).0, 0);
    let old = run_rules(&near, &["get", "--version", "1"]);
    assert_eq!((old.0, &*old.1), (0, FIRST_RULES));
}

#[test]
fn rollback_creates_a_new_version_with_the_old_text() {
    if lacking(&[REDIS]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = start_server(&redis);
    let (first, second) =
        (folder.file("first.yaml", FIRST_RULES), folder.file("second.yaml", SECOND_RULES));
    let (code, stdout, stderr) = run_rules(&server, &["rollback"]);
    assert_eq!((code, &*stdout), (1, ""));
    assert!(stderr.starts_with("error: no version before "), "{stderr}");
    for file in [&first, &second] {
        let (code, _, stderr) = run_rules(&server, &["push", file]);
        assert_eq!(code, 0, "{stderr}");
    }
    let (code, stdout, stderr) = run_rules(&server, &["rollback"]);
    assert_eq!((code, pushed_version(&stdout)), (0, 3), "{stderr}");
    assert!(stderr.contains("- login\n"), "{stderr}");
    assert_eq!(run_rules(&server, &["get"]).1, FIRST_RULES);
    let (_, history, _) = run_rules(&server, &["history"]);
    assert!(history.lines().nth(1).unwrap().ends_with("  rollback to 1"), "{history}");
    let (code, stdout, _) = run_rules(&server, &["rollback", "2", "--note", "after all"]);
    assert_eq!((code, pushed_version(&stdout)), (0, 4));
    assert_eq!(run_rules(&server, &["get"]).1, SECOND_RULES);
    let (code, _, stderr) = run_rules(&server, &["rollback", "4"]);
    assert_eq!((code, &*stderr), (1, "error: version 4 is already active\n"));
    let (code, _, stderr) = run_rules(&server, &["rollback", "99"]);
    assert_eq!(code, 1);
    let hint = "hint: tidegate rules history lists the available versions\n";
    assert!(stderr.ends_with(hint), "{stderr}");
}

#[test]
fn concurrent_pushes_are_stored_or_rejected_with_a_hint() {
    if lacking(&[REDIS]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = start_server(&redis);
    let file = folder.file("first.yaml", FIRST_RULES);
    let url = server.admin_url();
    let push = &|| run_rules_at(&url, &["push", &file]);
    let mut outcomes = Vec::new();
    for _ in 0..5 {
        outcomes.extend(std::thread::scope(|scope| {
            [scope.spawn(push), scope.spawn(push)].map(|push| push.join().unwrap())
        }));
    }
    let mut stored: Vec<u64> = Vec::new();
    for (code, stdout, stderr) in &outcomes {
        if *code == 0 {
            stored.push(pushed_version(stdout));
            continue;
        }
        assert_eq!((*code, &**stdout), (1, ""));
        let hint = format!("hint: tidegate rules diff {file} shows what a push would change now\n");
        assert!(stderr.contains(" was pushed in the meantime, nothing was pushed\n"), "{stderr}");
        assert!(stderr.ends_with(&hint), "{stderr}");
    }
    stored.sort_unstable();
    let numbers: Vec<u64> = (1..).take(stored.len()).collect();
    assert!(!stored.is_empty() && stored == numbers, "{stored:?}");
    let history = parse_json(&run_rules(&server, &["history", "--json", "--limit", "50"]).1);
    assert_eq!(history["versions"].as_array().unwrap().len(), stored.len());
    let (code, _, stderr) = run_rules(&server, &["push", &file, "--if-version", "0"]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("error: active version must be 0, found "), "{stderr}");
}

#[test]
fn invalid_document_is_rejected_before_it_is_sent() {
    let folder = Folder::new();
    let wrong = folder.file("wrong.yaml", "rules:\n  - {name: api, limit: 5 per moment}\n");
    // Nothing listens on this port, so errors must be found before the command connects.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{address}");
    let (_, _, validated) = run(&["validate", &wrong]);
    let first = validated.lines().next().unwrap();
    assert!(first.starts_with(&format!("{wrong}:2: ")), "{validated}");
    let (code, stdout, stderr) = run(&["rules", "push", &wrong, "--server", &url]);
    assert_eq!((code, &*stdout), (1, ""));
    assert!(stderr.starts_with(first), "{stderr}");
    // `diff` exits with 2 for errors, since 1 means that the rules differ.
    let (code, _, stderr) = run(&["rules", "diff", &wrong, "--server", &url]);
    assert_eq!((code, stderr.starts_with(first)), (2, true), "{stderr}");
    let config = folder.file("tidegate.yaml", "listen: {http: off}\n");
    let (code, _, stderr) = run(&["rules", "push", &config, "--server", &url]);
    assert_eq!(code, 1);
    let wanted = format!("error: {config}: a rules document is wanted, found a configuration\n");
    assert!(stderr.starts_with(&wanted), "{stderr}");
    let fine = folder.file("fine.yaml", FIRST_RULES);
    let (code, _, stderr) = run(&["rules", "push", &fine, "--server", &url]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with(&format!("error: {address} can't be reached")), "{stderr}");
    let (code, _, stderr) = run(&["rules", "diff", "7", "--server", &url]);
    assert_eq!(code, 2);
    assert!(stderr.ends_with("hint: name two versions to compare them\n"), "{stderr}");
    let (code, _, stderr) = run(&["rules", "diff", &fine, "7", "--server", &url]);
    assert_eq!(code, 2);
    assert!(stderr.contains("hint: tidegate rules diff 6 7 compares two versions"), "{stderr}");
    let long = "ä".repeat(201);
    let (code, _, stderr) = run(&["rules", "push", &fine, "--note", &long, "--server", &url]);
    assert_eq!(code, 2);
    assert!(stderr.contains("must have at most 200 characters, found 201"), "{stderr}");
    let (code, _, stderr) = run(&["rules", "rollback", "--by", "a\nb", "--server", &url]);
    assert_eq!(code, 2);
    assert!(stderr.contains("must be one line of plain text"), "{stderr}");
}

#[test]
fn push_prints_the_warnings_of_the_document() {
    if lacking(&[REDIS]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = start_server(&redis);
    let file = folder.file("rules.yaml", "rules:\n  - {name: a, limit: 1/s, match: {pth: /x}}\n");
    let warning = format!(
        "{file}:2: warning: rule \"a\": match: found attribute \"pth\", which no listener and no configuration sets, wanted path\n"
    );
    for arguments in [&["push", &*file, "--dry-run"][..], &["diff", &file], &["push", &file]] {
        let (_, _, stderr) = run_rules(&server, arguments);
        assert_eq!(stderr.matches(&warning).count(), 1, "{arguments:?}: {stderr}");
    }
    let (code, stdout, _) = run_rules(&server, &["push", &file]);
    assert_eq!((code, &parse_json(&stdout)["warnings"][0]["line"]), (0, &2.into()));
}

#[test]
fn rules_from_a_file_can_be_read_and_compared_but_not_pushed() {
    let server = Server::with_rules(FIRST_RULES);
    let folder = Folder::new();
    let second = folder.file("second.yaml", SECOND_RULES);
    assert_eq!(run_rules(&server, &["get"]).1, FIRST_RULES);
    assert_eq!(run_rules(&server, &["diff", &second]).0, 1);
    let (code, _, stderr) = run_rules(&server, &["status"]);
    assert_eq!(code, 0, "{stderr}");
    for arguments in [&["push", &*second][..], &["history"], &["rollback", "7"]] {
        let (code, stdout, stderr) = run_rules(&server, arguments);
        assert_eq!((code, &*stdout), (1, ""), "{arguments:?}: {stderr}");
    }
    let (_, _, stderr) = run_rules(&server, &["push", &second]);
    assert!(stderr.contains("rules.yaml"), "{stderr}");
    assert_eq!(count_admitted(&server, "alice"), 2);
}

#[test]
fn errors_hint_at_the_admin_listener_and_at_the_token() {
    let server = Server::with_rules(FIRST_RULES);
    let (code, _, stderr) = run(&["rules", "status", "--server", &server.url()]);
    assert_eq!(code, 2);
    assert!(stderr.contains("hint: use the URL of the admin listener"), "{stderr}");
    let config = "listen: {http: 127.0.0.1:0}\nadmin: {token: a-very-secret-token}\n\
                  rules: {inline: [{name: api, limit: 5 per minute}]}\n";
    let server = Server::with_config(config);
    let (code, _, stderr) = run_rules(&server, &["status"]);
    assert_eq!(code, 2);
    assert!(stderr.ends_with("hint: set TIDEGATE_TOKEN to the admin token\n"), "{stderr}");
    for command in ["get", "push", "diff", "history", "rollback", "status"] {
        let (code, stdout, _) = run(&["rules", command, "--help"]);
        assert_eq!(code, 0);
        assert!(stdout.contains("--server <URL>"), "{stdout}");
    }
}

#[test]
fn push_reads_a_document_from_stdin() {
    if lacking(&[REDIS]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = start_server(&redis);
    let input = std::fs::File::open(folder.file("first.yaml", FIRST_RULES)).unwrap();
    let url = server.admin_url();
    let mut push = tidegate();
    push.args(["rules", "push", "-", "--server", &url]).stdin(input);
    let (code, stdout, stderr) = exit_code_and_output(push.output().unwrap());
    assert_eq!((code, pushed_version(&stdout)), (0, 1), "{stderr}");
    let input = std::fs::File::open(folder.file("wrong.yaml", "rules: [{name: api}]\n")).unwrap();
    let mut push = tidegate();
    push.args(["rules", "push", "-", "--server", &url]).stdin(input);
    let (code, _, stderr) = exit_code_and_output(push.output().unwrap());
    assert_eq!(code, 1);
    assert!(stderr.starts_with("stdin:1: "), "{stderr}");
}
