//! What the facts mean. Nothing is read here.

mod binaries;
mod environment;
mod machine;
mod packages;
mod runtimes;

use kpack_core::Severity;

use crate::facts::Facts;
use crate::facts::machine::Machine;
use crate::facts::process::Process;
use crate::facts::restore::AllLost;
use crate::remedy::Diagnosis;
use runtimes::Processes;

pub(crate) use packages::is_for;

/// All findings, in the order of the causes: the machine, the packages that are installed, the code of each binary, and then the
/// HIP runtimes.
pub(crate) fn findings(facts: &Facts) -> Vec<Diagnosis> {
    let mut findings = machine::of_machine(&facts.machine);
    let found = of_examined(facts);
    if let Some(native) = &facts.native {
        let faults = |found: &[Diagnosis]| {
            found.iter().filter(|found| found.finding.severity == Severity::Fault).count()
        };
        let helps = faults(&found) > 0 && faults(&of_examined(native)) < faults(&found);
        findings.push(machine::of_override(&facts.machine, native.machine.gpus(), helps));
    }
    findings.extend(found);
    findings
}

/// Those about what is examined.
fn of_examined(facts: &Facts) -> Vec<Diagnosis> {
    let Facts { machine, environments, processes, packages, lost, .. } = facts;
    let mut findings = Vec::new();
    for (environment, own) in environments {
        findings.extend(environment::judge(environment, own, machine));
    }
    findings.extend(packages::judge(packages, processes, machine, lost));
    findings.extend(of_processes(machine, &facts.all_processes(), lost));
    findings
}

/// All findings about processes: the code of each binary, then the HIP runtimes. `all_lost` is what trim removed.
fn of_processes(machine: &Machine, processes: &[Process], all_lost: &AllLost) -> Vec<Diagnosis> {
    let mut findings = Vec::new();
    for process in processes {
        for binary in &process.binaries {
            binaries::of_binary(binary, process, machine, all_lost, &mut findings);
            binaries::of_databases(binary, machine, all_lost, &mut findings);
        }
    }
    for group in Processes::all(processes, machine) {
        group.judge(machine, &mut findings);
    }
    // Two programs may load the same library.
    let mut distinct: Vec<Diagnosis> = Vec::new();
    for finding in findings {
        if !distinct.contains(&finding) {
            distinct.push(finding);
        }
    }
    distinct
}
