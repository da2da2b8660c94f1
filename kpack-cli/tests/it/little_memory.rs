//! Given a process without memory, when a thread cannot start, then it ends.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use kpack_tests::fixture::{FatLibrary, Storage, code};
use kpack_tests::process::run;
use kpack_tests::require;
use kpack_tests::tree::Tree;

/// Threads other than the first get no memory for the stack of their signal handlers, and little for the panic that
/// follows.
const PRELOADED: &str = r"
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
static __thread int has_none, left = 16;

void *mmap64(void *at, size_t size, int access, int flags, int file, long offset) {
    if (file == -1 && gettid() != getpid()) {
        has_none = 1;
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void *)syscall(SYS_mmap, at, size, access, flags, file, offset);
}
void *mmap(void *at, size_t size, int access, int flags, int file, long offset) {
    return mmap64(at, size, access, flags, file, offset);
}
void *malloc(size_t size) {
    if (!has_none || (size < 1 << 20 && left-- > 0))
        return __libc_malloc(size);
    errno = ENOMEM;
    return 0;
}
";

#[test]
fn a_thread_that_cannot_start_ends_the_process() {
    if !require::tool("timeout") {
        return;
    }
    let tree = Tree::new();
    for name in ["lib/liba.so", "lib/libb.so"] {
        FatLibrary::new()
            .wrapper(Storage::Plain, [code("gfx1100", name)])
            .build(&tree.path(name))
            .unwrap();
    }
    fs::write(tree.path("preloaded.c"), PRELOADED).unwrap();
    run(Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o", "preloaded.so", "preloaded.c"])
        .current_dir(tree.root()));
    let preload = format!("LD_PRELOAD={}", tree.path("preloaded.so").display());
    for backtrace in ["0", "1", "full"] {
        let output = Command::new("timeout")
            .args(["-s", "KILL", "300", "env", &preload])
            .arg(env!("CARGO_BIN_EXE_kpack"))
            .args(["split", "--quiet", "--jobs", "2", "--prefix", ".", "--module", "vec", "--all"])
            .env("RUST_BACKTRACE", backtrace)
            .current_dir(tree.root())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let aborted = [output.status.signal(), output.status.code()].contains(&Some(6))
            || output.status.code() == Some(128 + 6);
        assert!(aborted, "{backtrace}: {} {said}", output.status);
        assert!(said.contains("kpack: error: out of memory: "), "{said}");
    }
}
