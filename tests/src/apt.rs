//! Packages of any Debian suite, without a change to the system.

/// A configuration of apt with its own state, in `@`.
pub const CONFIGURATION: &str = r#"
Dir::State "@";
Dir::State::status "@/status";
Dir::Cache "@";
Dir::Etc::SourceList "@/sources.list";
Dir::Etc::SourceParts "/dev/null";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Check-Valid-Until "false";
Acquire::Languages "none";
Acquire::Retries "2";
"#;
