//! Compiles CUDA C for one device, with NVRTC.
//!
//! ```text
//!   source ──▶ PTX? ──▶ used as it is
//!          ──▶ cached, and includes no files? ──▶ code from the cache
//!          ──▶ NVRTC ──▶ machine code, or PTX for a device that the compiler does not know ──▶ the cache
//! ```

use super::kernel_cache::{self, Key};
use crate::compiled::{BuildCause, includes};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::nvrtc::sys::{
    self, nvrtcCompileProgram, nvrtcCreateProgram, nvrtcDestroyProgram, nvrtcGetCUBIN, nvrtcGetCUBINSize,
    nvrtcGetErrorString, nvrtcGetNumSupportedArchs, nvrtcGetPTX, nvrtcGetPTXSize, nvrtcGetProgramLog,
    nvrtcGetProgramLogSize, nvrtcGetSupportedArchs, nvrtcProgram, nvrtcResult, nvrtcVersion,
};
use dml_core::internal::guard;
use std::ffi::{CStr, CString, c_char};
use std::sync::OnceLock;

/// Prefix of every source: the items of a launch.
const PRELUDE: &str = include_str!("prelude.cuh");

/// The NVRTC of this machine.
struct Compiler {
    version: (i32, i32),
    /// The supported compute capabilities, as major * 10 + minor, ascending.
    capabilities: Vec<u32>,
}

/// Returns the compiler, or why there is none. The library is opened once per process.
fn compiler() -> Result<&'static Compiler, BuildCause> {
    static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
    // The loader panics if the library lacks a symbol.
    let find = || guard(find).unwrap_or_else(|panic| Err(format!("NVRTC cannot be used: {panic}")));
    COMPILER.get_or_init(find).as_ref().map_err(|reason| BuildCause::NoCompiler(reason.clone()))
}

fn find() -> Result<Compiler, String> {
    // SAFETY: opens libraries by the names of NVIDIA's compiler. Their initialisers are trusted like the
    // driver.
    if !unsafe { sys::is_culib_present() } {
        let reason =
            "NVRTC was not found (libnvrtc.so): it comes with the CUDA toolkit; kernels in PTX need none";
        return Err(reason.to_owned());
    }
    let said = |call: &'static str| move |code| format!("{call} failed: {}", words(code));
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the call writes two numbers.
    check(unsafe { nvrtcVersion(&raw mut major, &raw mut minor) }).map_err(said("nvrtcVersion"))?;
    let mut count = 0;
    // SAFETY: the call writes a number.
    check(unsafe { nvrtcGetNumSupportedArchs(&raw mut count) }).map_err(said("nvrtcGetNumSupportedArchs"))?;
    let mut capabilities = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the call writes `count` numbers, which the vector has room for.
    check(unsafe { nvrtcGetSupportedArchs(capabilities.as_mut_ptr()) })
        .map_err(said("nvrtcGetSupportedArchs"))?;
    let mut capabilities: Vec<u32> =
        capabilities.into_iter().filter_map(|arch| arch.try_into().ok()).collect();
    capabilities.sort_unstable();
    Ok(Compiler { version: (major, minor), capabilities })
}

fn check(code: nvrtcResult) -> Result<(), nvrtcResult> {
    if code == nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(code) }
}

fn words(code: nvrtcResult) -> String {
    // SAFETY: the call returns a C string that lives as long as the library.
    unsafe { CStr::from_ptr(nvrtcGetErrorString(code)) }.to_string_lossy().into_owned()
}

/// Returns whether the source is PTX: whether its first directive is `.version`.
pub(super) fn is_ptx(source: &str) -> bool {
    let mut lines = source.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.next().is_some_and(|line| line.starts_with(".version"))
}

/// Returns the architecture option for a device of this capability, and whether the result is machine code.
fn target(capabilities: &[u32], (major, minor): (u32, u32)) -> (String, bool) {
    let own = major * 10 + minor;
    if capabilities.contains(&own) {
        return (format!("--gpu-architecture=sm_{own}"), true);
    }
    // The driver compiles PTX of an older capability for the device.
    let older = capabilities.iter().copied().filter(|&capability| capability < own).max();
    (format!("--gpu-architecture=compute_{}", older.unwrap_or(own)), false)
}

/// Compiles a source for a device, or loads the code from the cache. The cache key includes the driver's
/// version.
pub(super) fn compile(
    source: &str,
    options: &str,
    capability: (u32, u32),
    driver: i32,
) -> Result<Vec<u8>, BuildCause> {
    let compiler = compiler()?;
    let (target, is_machine_code) = target(&compiler.capabilities, capability);
    let text = format!("{PRELUDE}\n#line 1 \"kernel.cu\"\n{source}");
    let key = Key::new(&[
        &text,
        options,
        &target,
        &format!("driver {driver}"),
        &format!("nvrtc {}.{}", compiler.version.0, compiler.version.1),
    ]);
    // Included files may change, so such kernels are not cached.
    let is_kept = !includes(source, options);
    if let Some(code) = kernel_cache::load(&key).filter(|_| is_kept) {
        return Ok(code);
    }
    let code = run(&text, options, &target, is_machine_code)?;
    if is_kept {
        kernel_cache::store(&key, &code);
    }
    Ok(code)
}

/// A program of NVRTC, destroyed on drop.
struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created in `run` and is destroyed once.
        let _ = unsafe { nvrtcDestroyProgram(&raw mut self.0) };
    }
}

fn run(text: &str, options: &str, target: &str, is_machine_code: bool) -> Result<Vec<u8>, BuildCause> {
    let call = |call: &'static str| {
        move |code: nvrtcResult| BuildCause::Framework {
            call,
            code: i64::from(code as u32),
            message: words(code).into(),
        }
    };
    let source = CString::new(text).map_err(|_| BuildCause::ZeroCharacter("the source"))?;
    let mut program = std::ptr::null_mut();
    let (text, none) = (source.as_ptr(), std::ptr::null());
    // SAFETY: the source outlives the program, the name is a C string, and there are no headers. The call
    // writes a handle.
    check(unsafe { nvrtcCreateProgram(&raw mut program, text, c"kernel.cu".as_ptr(), 0, none, none) })
        .map_err(call("nvrtcCreateProgram"))?;
    let program = Program(program);
    let given = ["--std=c++17", target].into_iter().chain(options.split_whitespace());
    let given: Result<Vec<CString>, _> = given.map(CString::new).collect();
    let given = given.map_err(|_| BuildCause::ZeroCharacter("the options"))?;
    let given: Vec<*const c_char> = given.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: a live program, and `given.len()` C strings that outlive the call.
    let compiled = check(unsafe { nvrtcCompileProgram(program.0, given.len() as i32, given.as_ptr()) });
    if let Err(code) = compiled {
        let log = bytes(program.0, nvrtcGetProgramLogSize, nvrtcGetProgramLog).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
        return Err(match code {
            nvrtcResult::NVRTC_ERROR_COMPILATION | nvrtcResult::NVRTC_ERROR_INVALID_OPTION => {
                BuildCause::Compile(if log.is_empty() { words(code) } else { log })
            }
            code => call("nvrtcCompileProgram")(code),
        });
    }
    match is_machine_code {
        true => bytes(program.0, nvrtcGetCUBINSize, nvrtcGetCUBIN).map_err(call("nvrtcGetCUBIN")),
        false => bytes(program.0, nvrtcGetPTXSize, nvrtcGetPTX).map_err(call("nvrtcGetPTX")),
    }
}

/// Returns the bytes that `write` writes. Their number comes from `size`.
fn bytes(
    program: nvrtcProgram,
    size: unsafe fn(nvrtcProgram, *mut usize) -> nvrtcResult,
    write: unsafe fn(nvrtcProgram, *mut c_char) -> nvrtcResult,
) -> Result<Vec<u8>, nvrtcResult> {
    let mut count = 0;
    // SAFETY: a live program; the call writes a number.
    check(unsafe { size(program, &raw mut count) })?;
    let mut found = vec![0_u8; count];
    // SAFETY: the call writes `count` characters.
    check(unsafe { write(program, found.as_mut_ptr().cast()) })?;
    Ok(found)
}

/// Addresses are passed to kernels without conversion.
const _: () = assert!(size_of::<CUdeviceptr>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_told_from_source() {
        assert!(is_ptx("//\n// made by hand\n//\n\n.version 8.0\n.target sm_70\n"));
        assert!(!is_ptx("// .version\nextern \"C\" __global__ void f() {}"));
        assert!(!is_ptx(""));
    }

    #[test]
    fn a_device_that_the_compiler_does_not_know_gets_ptx() {
        let known = [75, 80, 90, 100];
        assert_eq!(target(&known, (9, 0)), ("--gpu-architecture=sm_90".to_owned(), true));
        assert_eq!(target(&known, (8, 9)), ("--gpu-architecture=compute_80".to_owned(), false));
        assert_eq!(target(&known, (12, 1)), ("--gpu-architecture=compute_100".to_owned(), false));
    }
}
