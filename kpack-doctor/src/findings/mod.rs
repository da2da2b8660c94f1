//! What the facts mean. Nothing is read here.

mod binaries;
mod environment;
mod lacking;
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

pub(crate) use machine::of_machine;
pub(crate) use packages::is_for;

/// All findings, in the order of the causes: the machine, and then `found`, those about what is examined. `native` is the facts
/// without the override of the GPUs, which matter only if there are [faults].
pub(crate) fn findings(
    facts: &Facts,
    found: Vec<Diagnosis>,
    native: Option<&Facts>,
) -> Vec<Diagnosis> {
    let mut findings = of_machine(&facts.machine);
    if let Some(gpus) = &facts.machine.native {
        let helps = native.is_some_and(|native| faults(&of_examined(native)) < faults(&found));
        findings.push(machine::of_override(&facts.machine, gpus, helps));
    }
    findings.extend(found);
    findings
}

/// The number of faults.
pub(crate) fn faults(found: &[Diagnosis]) -> usize {
    found.iter().filter(|found| found.finding.severity == Severity::Fault).count()
}

/// Those about what is examined: the packages that are installed, the code of each binary, and then the HIP runtimes.
pub(crate) fn of_examined(facts: &Facts) -> Vec<Diagnosis> {
    let Facts { machine, environments, processes, packages, lost, .. } = facts;
    let mut findings = Vec::new();
    for (environment, own) in environments {
        findings.extend(environment::judge(environment, own, machine));
    }
    findings.extend(packages::judge(packages, processes, machine, lost));
    findings.extend(of_processes(machine, facts.all_processes(), lost));
    findings
}

/// All findings about processes: the code of each binary, then the HIP runtimes. `all_lost` is what trim removed.
fn of_processes<'a>(
    machine: &Machine,
    processes: impl Iterator<Item = &'a Process> + Clone,
    all_lost: &AllLost,
) -> Vec<Diagnosis> {
    let mut findings = Vec::new();
    for process in processes.clone() {
        // Without these, no code is asked for.
        lacking::of_process(process, machine, &mut findings);
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
