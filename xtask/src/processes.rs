//! Ends a program with all processes that it has started.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

/// Kills a process, those that it has started, and those that they have started. Returns a line for each except the first: its
/// ID, its state, what it waits for in the kernel, and its command.
pub(crate) fn kill(ancestor: u32) -> String {
    let all = Command::new("ps").args(["-e", "-o", "pid=,ppid=,stat=,wchan:24=,args="]).output();
    let all = match all {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return format!("unknown: `ps` cannot be run: {error}\n"),
    };
    let mut children: BTreeMap<u32, Vec<(u32, String)>> = BTreeMap::new();
    for line in all.lines() {
        let mut words = line.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
        let (Some(id), Some(parent)) = (number(), number()) else { continue };
        let rest = Vec::from_iter(words).join(" ");
        children.entry(parent).or_default().push((id, rest));
    }
    if children.is_empty() {
        return "unknown: `ps` lists none\n".to_owned();
    }
    // It comes first: otherwise it might go on after the others have ended.
    let (mut text, mut ids, mut next) = (String::new(), vec![ancestor.to_string()], vec![ancestor]);
    while let Some(parent) = next.pop() {
        for (id, what) in children.remove(&parent).unwrap_or_default() {
            let _ = writeln!(text, "{id} {what}");
            ids.push(id.to_string());
            next.push(id);
        }
    }
    // Some may have ended meanwhile.
    let _ = Command::new("kill").arg("-KILL").args(ids).output();
    text
}
