//! Loads every kernel of the modules, and launches one. With `--load`, it launches none.

use std::env;
use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::process::ExitCode;
use std::ptr::null_mut;

use libloading::Library;

kpack::include_modules!("kernels");

/// The compiler checks that the module has this kernel.
const ADD: &CStr = kernels::VECTOR.kernel(c"add");

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Pointer = *mut c_void;

const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;

/// Calls a function of the HIP runtime. A crate with bindings to HIP replaces this macro and `runtime`.
macro_rules! hip {
    ($runtime:expr, $function:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        let name = stringify!($function);
        // SAFETY: the function has these parameters, and its pointers are valid.
        let error = unsafe {
            let function = $runtime.get::<unsafe extern "C" fn($($type),*) -> c_int>(name.as_bytes())?;
            function($($argument),*)
        };
        if error == 0 { Ok(()) } else { Err(format!("{name} failed (hipError_t {error})")) }
    }};
}

/// Opens the newest HIP runtime, and checks that it finds a GPU.
fn runtime() -> Result<Library> {
    let names = ["so.7", "so.6", "so.5", "so"].map(|end| format!("libamdhip64.{end}"));
    // SAFETY: nothing needs to be done before the runtime is opened.
    let mut libraries = names.iter().filter_map(|name| unsafe { Library::new(name) }.ok());
    let library = libraries.next().ok_or("found no HIP runtime (libamdhip64.so); install ROCm")?;
    let mut count = 0;
    hip!(library, hipGetDeviceCount(&mut count => *mut c_int))
        .map_err(|error| format!("{error}: found no GPU"))?;
    Ok(library)
}

/// Room for hipDeviceProp_t, which is smaller.
#[repr(align(8))]
struct Properties([u8; 4096]);

/// `gcnArchName` of the first GPU.
fn arch(runtime: &Library) -> Result<String> {
    // The place of the field depends on the function, which is new in ROCm 6.
    let mut properties = Properties([0; 4096]);
    let buffer = properties.0.as_mut_ptr();
    // SAFETY: only asks whether the runtime has this function.
    let is_new = unsafe { runtime.get::<Pointer>(b"hipGetDevicePropertiesR0600") }.is_ok();
    let offset = if is_new {
        hip!(runtime, hipGetDevicePropertiesR0600(buffer => *mut u8, 0 => c_int))?;
        1160
    } else {
        hip!(runtime, hipGetDeviceProperties(buffer => *mut u8, 0 => c_int))?;
        396
    };
    Ok(CStr::from_bytes_until_nul(&properties.0[offset..])?.to_str()?.to_owned())
}

/// Adds `b` to `a` on the GPU.
fn add(runtime: &Library, kernel: Pointer, a: &mut [f32; 64], b: &[f32; 64]) -> Result<()> {
    let size = size_of_val(a);
    let copy = |to: Pointer, from: Pointer, kind: c_int| -> Result<()> {
        hip!(runtime, hipMemcpy(to => Pointer, from => Pointer, size => usize, kind => c_int))?;
        Ok(())
    };
    let (mut gpu_a, mut gpu_b) = (null_mut(), null_mut());
    hip!(runtime, hipMalloc(&mut gpu_a => *mut Pointer, size => usize))?;
    hip!(runtime, hipMalloc(&mut gpu_b => *mut Pointer, size => usize))?;
    copy(gpu_a, a.as_mut_ptr().cast(), HOST_TO_DEVICE)?;
    copy(gpu_b, b.as_ptr().cast_mut().cast(), HOST_TO_DEVICE)?;
    let mut arguments: [Pointer; 2] = [(&raw mut gpu_a).cast(), (&raw mut gpu_b).cast()];
    hip!(runtime, hipModuleLaunchKernel(
        kernel => Pointer,
        1 => c_uint, 1 => c_uint, 1 => c_uint, // blocks
        64 => c_uint, 1 => c_uint, 1 => c_uint, // threads
        0 => c_uint, null_mut() => Pointer, // shared memory, stream
        arguments.as_mut_ptr() => *mut Pointer, null_mut() => *mut Pointer,
    ))?;
    copy(a.as_mut_ptr().cast(), gpu_a, DEVICE_TO_HOST)?;
    hip!(runtime, hipFree(gpu_a => Pointer))?;
    hip!(runtime, hipFree(gpu_b => Pointer))?;
    Ok(())
}

fn run() -> Result<()> {
    let runtime = runtime()?;
    let arch = arch(&runtime)?;
    for module in kernels::ALL {
        let code = module.load(&arch)?;
        let mut handle = null_mut();
        hip!(runtime, hipModuleLoadData(&mut handle => *mut Pointer, code.as_ptr() => *const c_void))?;
        for name in module.kernels() {
            let mut kernel = null_mut();
            hip!(runtime, hipModuleGetFunction(
                &mut kernel => *mut Pointer, handle => Pointer, name.as_ptr() => *const c_char,
            ))?;
            println!("{}: {} for {}", module.name(), name.to_string_lossy(), code.target());
            if *name == ADD && !env::args().any(|argument| argument == "--load") {
                let (mut a, b) = ([1.0; 64], [2.0; 64]);
                add(&runtime, kernel, &mut a, &b)?;
                println!("1 + 2 = {}", a[0]);
            }
        }
        // The runtime reads the code until here.
        hip!(runtime, hipModuleUnload(handle => Pointer))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
