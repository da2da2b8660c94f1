//! The findings about libraries and kernel databases that are missing.

use std::path::Path;

use kpack_core::{Finding, Severity, ids};

use crate::facts::lacking::{LackingDatabase, LackingLibrary};
use crate::facts::libraries::When;
use crate::facts::machine::Machine;
use crate::facts::process::Process;
use crate::remedy::Diagnosis;
use crate::system_libraries::is_dll;

/// Reports what a process lacks.
pub(super) fn of_process(process: &Process, machine: &Machine, findings: &mut Vec<Diagnosis>) {
    let libraries = process.lacking.libraries.iter();
    findings.extend(libraries.map(|lacking| of_library(lacking, process, machine).into()));
    findings.extend(process.lacking.databases.iter().map(|lacking| of_database(lacking).into()));
}

fn of_library(lacking: &LackingLibrary, process: &Process, machine: &Machine) -> Finding {
    let LackingLibrary { library, other } = lacking;
    let name = library.name.to_string_lossy();
    let needs = match library.when {
        When::ByName => "loads",
        When::AtStart | When::AtFirstCall => "needs",
    };
    let (place, help) = if is_dll(&name) {
        let directory = process.real.parent().unwrap_or(Path::new("/"));
        (format!("is not in {}", directory.display()), "copy it to this directory".to_owned())
    } else if machine.is_confined {
        ("was not found".to_owned(), "add it to the directory".to_owned())
    } else {
        let help = "install the package that contains it, or add its directory to LD_LIBRARY_PATH";
        ("was not found".to_owned(), help.to_owned())
    };
    let mut text = format!("{needs} {name}, which {place}");
    if let Some(other) = other {
        text.push_str(&format!("; {} is another version", other.display()));
    }
    Finding::new(Severity::Fault, ids::MISSING_LIBRARY, &library.needed_by, text).with_help(help)
}

fn of_database(lacking: &LackingDatabase) -> Finding {
    match lacking {
        LackingDatabase::All { library, database, directory, is_there, is_required } => {
            let (severity, without) = match is_required {
                true => (Severity::Fault, "fails without it"),
                false => (Severity::Note, "compiles or searches for kernels at run time instead"),
            };
            let directory = directory.display();
            let lacks = match is_there {
                true => format!("has no file for any GPU in `{directory}`"),
                false => format!("is missing: looked for `{directory}`"),
            };
            let text = format!("the kernel database {database} {lacks}; this library {without}");
            let help = "copy this directory from the ROCm that the library is from";
            Finding::new(severity, ids::MISSING_DATABASE, library, text).with_help(help)
        }
        LackingDatabase::Files(path, text) => {
            Finding::new(Severity::Fault, ids::INCOMPLETE_DATABASE, path, text.as_str())
                .with_help("copy the missing files from the ROCm that the library is from")
        }
        LackingDatabase::Damaged(found) => found.clone(),
    }
}
