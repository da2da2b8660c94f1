//! The GPUs of this machine.

mod agents;
mod kfd;
mod pci;

pub use agents::{Gpu, agents, agents_at, gpus_at, visible};
pub use kfd::{NODES as KFD_NODES, OVERRIDE as GPU_OVERRIDE, is_override};
