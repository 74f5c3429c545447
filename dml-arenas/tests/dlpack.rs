//! Tensors of DLPack in memory of the host: in as storage of buffers, out as grants, deleted once.

#![cfg(not(dml_loom))]

use dml_arenas::MainMem;
use dml_arenas::dlpack::abi::{
    CPU, CUDA, CUDA_HOST, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion,
    DLTensor, FLAG_IS_COPIED, FLAG_READ_ONLY, FLOAT, VERSION,
};
use dml_arenas::dlpack::{self, Element, Export, ExportError, ImportError, Tensor, Unexported};
use dml_core::Foreign;
use dml_core::internal::sync::Arc;
use dml_core::{AcquireError, Buffer, DeviceDesc, DeviceId, DeviceKind, Grants, Platform, ViewError};
use dml_verify::Audited;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

const HOST: DeviceId = DeviceId(0);

fn platform() -> Audited {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(MainMem::new(HOST)));
    Audited::new(builder.build().unwrap())
}

/// What a framework would own: the elements, their shape, and a count of deletions.
struct Theirs {
    elements: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    deleted: Arc<AtomicUsize>,
}

impl Theirs {
    /// Six elements, in two rows.
    fn new() -> (Self, Arc<AtomicUsize>) {
        let deleted = Arc::new(AtomicUsize::new(0));
        let elements = (0..6).map(|i| i as f32 + 0.5).collect();
        (Self { elements, shape: vec![2, 3], strides: vec![3, 1], deleted: deleted.clone() }, deleted)
    }

    fn tensor(&mut self) -> DLTensor {
        DLTensor {
            data: self.elements.as_mut_ptr().cast(),
            device: DLDevice { device_type: CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype: f32::TYPE,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    /// The structure that a framework would hand out, after `change`.
    fn versioned(
        mut self,
        change: impl FnOnce(&mut DLManagedTensorVersioned),
    ) -> *mut DLManagedTensorVersioned {
        let dl_tensor = self.tensor();
        let manager_ctx = Box::into_raw(Box::new(self)).cast();
        let deleter = Some(delete as unsafe extern "C" fn(*mut DLManagedTensorVersioned));
        let mut managed =
            DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter, flags: 0, dl_tensor };
        change(&mut managed);
        Box::into_raw(Box::new(managed))
    }

    fn legacy(mut self) -> *mut DLManagedTensor {
        let dl_tensor = self.tensor();
        let manager_ctx = Box::into_raw(Box::new(self)).cast();
        let deleter = Some(delete_legacy as unsafe extern "C" fn(*mut DLManagedTensor));
        Box::into_raw(Box::new(DLManagedTensor { dl_tensor, manager_ctx, deleter }))
    }
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the consumer deletes what `versioned` made, once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    let theirs = unsafe { Box::from_raw(managed.manager_ctx.cast::<Theirs>()) };
    theirs.deleted.fetch_add(1, Ordering::Relaxed);
}

unsafe extern "C" fn delete_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: as in `delete`, of what `legacy` made.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    let theirs = unsafe { Box::from_raw(managed.manager_ctx.cast::<Theirs>()) };
    theirs.deleted.fetch_add(1, Ordering::Relaxed);
}

/// Takes a changed tensor. Returns what came of it, and how often it was deleted by then.
fn taken(
    change: impl FnOnce(&mut DLManagedTensorVersioned),
) -> (Result<Tensor, ImportError>, Arc<AtomicUsize>) {
    let (theirs, deleted) = Theirs::new();
    // SAFETY: made for this call, with memory that only the tensor has. Every change leaves what it names
    // alive.
    (unsafe { Tensor::from_versioned(theirs.versioned(change)) }, deleted)
}

fn count(deleted: &AtomicUsize) -> usize {
    deleted.load(Ordering::Relaxed)
}

#[test]
fn a_tensor_is_storage_of_a_buffer_and_is_deleted_with_it() {
    let platform = platform();
    let (tensor, deleted) = taken(|_| {});
    let tensor = tensor.unwrap();
    assert_eq!((tensor.shape(), tensor.len(), tensor.is_read_only()), (&[2, 3][..], 6, false));
    let at = tensor.as_slice::<f32>().unwrap().as_ptr();
    let buffer = platform.buffer_from(tensor.into_foreign::<f32>().unwrap()).unwrap();
    let mut writing = buffer.read_write().unwrap();
    assert_eq!(writing.as_ptr(), at, "nothing is copied");
    writing[4] = 9.0;
    writing.release().unwrap();
    let tensor = buffer.into_storage::<Foreign<f32, Tensor>>().unwrap().into_owner().unwrap();
    assert_eq!(tensor.as_slice::<f32>().unwrap(), [0.5, 1.5, 2.5, 3.5, 9.0, 5.5]);
    let buffer = platform.buffer_from(tensor.into_foreign::<f32>().unwrap()).unwrap();
    assert_eq!(count(&deleted), 0);
    drop(buffer);
    assert_eq!(count(&deleted), 1);
}

#[test]
fn a_tensor_of_before_version_1_is_taken_as_well() {
    let platform = platform();
    let (theirs, deleted) = Theirs::new();
    // SAFETY: made for this call.
    let tensor = unsafe { Tensor::from_legacy(theirs.legacy()) }.unwrap();
    let buffer = platform.buffer::<f32>(6).build().unwrap();
    buffer.attach_external(tensor.into_foreign::<f32>().unwrap()).unwrap();
    assert_eq!(buffer.read().unwrap()[5], 5.5);
    drop(buffer);
    assert_eq!(count(&deleted), 1);
    // SAFETY: null pointers are refused.
    let refused =
        unsafe { [Tensor::from_legacy(null_mut()).err(), Tensor::from_versioned(null_mut()).err()] };
    assert_eq!(refused, [Some(ImportError::Null), Some(ImportError::Null)]);
}

#[test]
fn a_tensor_that_contradicts_itself_is_refused_and_deleted_once() {
    type Change = fn(&mut DLManagedTensorVersioned);
    let (next, shape) = (DLPackVersion { major: VERSION.major + 1, ..VERSION }, vec![2, 3]);
    static mut NEGATIVE: [i64; 2] = [2, -3];
    static mut HUGE: [i64; 2] = [i64::MAX, 3];
    let changes: [(Change, ImportError); 8] = [
        (|managed| managed.version.major += 1, ImportError::Version { found: next }),
        (|managed| managed.dl_tensor.ndim = -1, ImportError::NoShape { ndim: -1 }),
        (|managed| managed.dl_tensor.shape = null_mut(), ImportError::NoShape { ndim: 2 }),
        (
            |managed| managed.dl_tensor.shape = (&raw mut NEGATIVE).cast(),
            ImportError::Extent { axis: 1, extent: -3 },
        ),
        (
            |managed| managed.dl_tensor.shape = (&raw mut HUGE).cast(),
            ImportError::TooLarge { shape: vec![i64::MAX as u64, 3], element_bits: 32 },
        ),
        (
            |managed| managed.dl_tensor.byte_offset = u64::MAX,
            ImportError::TooLarge { shape: shape.clone(), element_bits: 32 },
        ),
        (|managed| managed.dl_tensor.data = null_mut(), ImportError::NoData { elements: 6 }),
        (
            // As of a matrix that was transposed.
            |managed| managed.dl_tensor.strides = managed.dl_tensor.shape,
            ImportError::Stride { axis: 0, stride: 2, expected: 3, shape },
        ),
    ];
    for (change, expected) in changes {
        let (refused, deleted) = taken(change);
        assert_eq!((refused.unwrap_err(), count(&deleted)), (expected, 1));
    }
}

#[test]
fn strides_are_those_of_a_compact_tensor_or_mean_nothing() {
    static mut ROWS: [i64; 2] = [1, 6];
    static mut ODD: [i64; 2] = [77, 1];
    static mut NONE: [i64; 2] = [0, 3];
    let (tensor, _) = taken(|managed| managed.dl_tensor.strides = null_mut());
    assert_eq!(tensor.unwrap().as_slice::<f32>().unwrap()[5], 5.5);
    let one_row = |managed: &mut DLManagedTensorVersioned| {
        managed.dl_tensor.shape = (&raw mut ROWS).cast();
        managed.dl_tensor.strides = (&raw mut ODD).cast();
    };
    assert_eq!(taken(one_row).0.unwrap().shape(), [1, 6], "nobody steps from the first row to the next");
    let nothing = |managed: &mut DLManagedTensorVersioned| {
        managed.dl_tensor.shape = (&raw mut NONE).cast();
        managed.dl_tensor.strides = (&raw mut ODD).cast();
        managed.dl_tensor.data = null_mut();
    };
    let (empty, deleted) = taken(nothing);
    let empty = empty.unwrap();
    assert!(empty.is_empty() && empty.as_slice::<f32>().unwrap().is_empty());
    let platform = platform();
    let buffer = platform.buffer_from(empty.into_foreign::<f32>().unwrap()).unwrap();
    assert!(buffer.is_empty() && buffer.read().unwrap().is_empty());
    drop(buffer);
    assert_eq!(count(&deleted), 1);
    // No dimensions are one element.
    let (scalar, _) = taken(|managed| {
        (managed.dl_tensor.ndim, managed.dl_tensor.shape, managed.dl_tensor.strides) =
            (0, null_mut(), null_mut());
    });
    assert_eq!(scalar.unwrap().as_slice::<f32>().unwrap(), [0.5]);
}

#[test]
fn an_offset_counts_from_the_start_of_the_memory() {
    static mut FOUR: [i64; 1] = [4];
    let four = |offset: u64| {
        move |managed: &mut DLManagedTensorVersioned| {
            let tensor = &mut managed.dl_tensor;
            (tensor.ndim, tensor.shape, tensor.strides) = (1, (&raw mut FOUR).cast(), null_mut());
            tensor.byte_offset = offset;
        }
    };
    assert_eq!(taken(four(8)).0.unwrap().as_slice::<f32>().unwrap(), [2.5, 3.5, 4.5, 5.5]);
    let (odd, deleted) = taken(four(6));
    let odd = odd.unwrap();
    assert!(matches!(odd.as_slice::<f32>(), Err(ImportError::Alignment { align: 4, .. })));
    let untaken = odd.into_foreign::<f32>().unwrap_err();
    assert!(matches!(untaken.cause, ImportError::Alignment { .. }), "{untaken}");
    assert_eq!(count(&deleted), 0, "the error has it");
    drop(untaken);
    assert_eq!(count(&deleted), 1);
}

#[test]
fn what_is_of_another_type_or_elsewhere_or_read_only_comes_back() {
    let (tensor, deleted) = taken(|_| {});
    let untaken = tensor.unwrap().into_foreign::<i32>().unwrap_err();
    assert_eq!(untaken.cause, ImportError::Type { found: f32::TYPE, expected: "i32" });
    let tensor = untaken.tensor;
    assert!(tensor.as_slice::<f64>().is_err() && tensor.as_slice::<f32>().is_ok());
    drop(tensor);
    assert_eq!(count(&deleted), 1);
    let lanes = DLDataType { code: FLOAT, bits: 32, lanes: 4 };
    let (vectors, _) = taken(|managed| managed.dl_tensor.dtype = lanes);
    // Four times as many bytes would be past the end, so nothing may be read.
    assert_eq!(vectors.unwrap().as_slice::<f32>(), Err(ImportError::Type { found: lanes, expected: "f32" }));
    let (elsewhere, _) =
        taken(|managed| managed.dl_tensor.device = DLDevice { device_type: CUDA, device_id: 3 });
    let untaken = elsewhere.unwrap().into_foreign::<f32>().unwrap_err();
    assert!(matches!(untaken.cause, ImportError::Device { found: DLDevice { device_id: 3, .. }, .. }));
    let (locked, _) = taken(|managed| managed.dl_tensor.device.device_type = CUDA_HOST);
    assert_eq!(locked.unwrap().into_foreign::<f32>().unwrap().as_slice()[1], 1.5);
    let (read_only, deleted) = taken(|managed| managed.flags = FLAG_READ_ONLY);
    let untaken = read_only.unwrap().into_foreign::<f32>().unwrap_err();
    assert_eq!((&untaken.cause, untaken.tensor.as_slice::<f32>().unwrap()[1]), (&ImportError::ReadOnly, 1.5));
    drop(untaken);
    assert_eq!(count(&deleted), 1);
}

fn numbers(platform: &Platform) -> Buffer<u32> {
    platform.buffer_from((0..24).map(|i| i * 7 + 1).collect::<Vec<u32>>()).unwrap()
}

/// What a consumer in C sees of a tensor.
fn seen(tensor: &DLTensor) -> (Vec<i64>, Vec<i64>, *mut c_void) {
    let dimensions = tensor.ndim as usize;
    // SAFETY: the structure names so many numbers.
    let [shape, strides] = [tensor.shape, tensor.strides]
        .map(|numbers| unsafe { std::slice::from_raw_parts(numbers, dimensions) }.to_vec());
    (shape, strides, tensor.data)
}

#[test]
fn granted_bytes_are_a_tensor_until_it_is_deleted() {
    let platform = platform();
    let buffer = numbers(&platform);
    let at = buffer.read().unwrap().as_ptr();
    let grants = platform.acquire(HOST).read_write(&buffer).wait().unwrap();
    let export = dlpack::export::<u32>(grants, &buffer, &[2, 3, 4]).unwrap();
    assert!(!export.is_read_only());
    let lent = export.into_versioned();
    // SAFETY: live until it is deleted.
    let managed = unsafe { lent.as_ref() };
    assert_eq!((managed.version, managed.flags, managed.dl_tensor.dtype), (VERSION, 0, u32::TYPE));
    assert_eq!(managed.dl_tensor.device, DLDevice { device_type: CPU, device_id: 0 });
    assert_eq!(seen(&managed.dl_tensor), (vec![2, 3, 4], vec![12, 4, 1], at.cast_mut().cast()));
    let busy = platform.acquire(HOST).read(&buffer).try_now().unwrap_err();
    assert!(busy.is_busy(), "{busy}");
    // SAFETY: within the tensor, which is for writing.
    unsafe { managed.dl_tensor.data.cast::<u32>().add(23).write(99) };
    let address = lent.as_ptr().expose_provenance();
    // A consumer deletes on any thread.
    std::thread::spawn(move || {
        let managed = std::ptr::with_exposed_provenance_mut::<DLManagedTensorVersioned>(address);
        // SAFETY: the one call of the deleter.
        unsafe { (*managed).deleter.unwrap()(managed) }
    })
    .join()
    .unwrap();
    assert_eq!(buffer.read().unwrap()[22..], [155, 99], "the deleter commits");
}

#[test]
fn what_is_granted_for_reading_is_read_only_and_the_old_structure_cannot_say_so() {
    let platform = platform();
    let buffer = numbers(&platform);
    let reading = || platform.acquire(HOST).read(&buffer).wait().unwrap();
    let part = buffer.range(8..20);
    let export = dlpack::export::<u32>(reading(), &part, &[12]).unwrap();
    let Unexported { cause, kept } = *export.into_legacy().unwrap_err();
    assert_eq!(cause, ExportError::ReadOnly);
    let lent = kept.into_versioned();
    // SAFETY: live until it is deleted.
    assert_eq!(unsafe { lent.as_ref() }.flags, FLAG_READ_ONLY);
    // SAFETY: just made; no kernel writes memory that is granted for reading.
    let tensor = unsafe { Tensor::from_versioned(lent.as_ptr()) }.unwrap();
    assert_eq!(tensor.as_slice::<u32>().unwrap(), &buffer.read().unwrap()[8..20]);
    let untaken = tensor.into_foreign::<u32>().unwrap_err();
    assert_eq!(untaken.cause, ImportError::ReadOnly);
    assert!(platform.acquire(HOST).write(&buffer).try_now().unwrap_err().is_busy());
    drop(untaken);
    buffer.write().unwrap().release().unwrap();
}

#[test]
fn a_tensor_goes_round_in_the_old_structure() {
    let platform = platform();
    let buffer = numbers(&platform);
    let grants = platform.acquire(HOST).read_write(&buffer.range(4..10)).wait().unwrap();
    let lent = dlpack::export::<u32>(grants, &buffer.range(4..10), &[3, 2]).unwrap().into_legacy().unwrap();
    // SAFETY: just made, and no other consumer has it.
    let tensor = unsafe { Tensor::from_legacy(lent.as_ptr()) }.unwrap();
    let other = platform.buffer_from(tensor.into_foreign::<u32>().unwrap()).unwrap();
    let mut writing = other.read_write().unwrap();
    writing[5] = 1000;
    writing.release().unwrap();
    drop(other);
    assert_eq!(buffer.read().unwrap()[8..11], [57, 1000, 71]);
}

fn refused(export: Result<Export, Box<Unexported<Grants>>>) -> (ExportError, Grants) {
    let Unexported { cause, kept } = *export.expect_err("refused");
    (cause, kept)
}

#[test]
fn a_shape_that_does_not_fit_and_bytes_that_are_not_granted_are_no_tensor() {
    let platform = platform();
    let buffer = numbers(&platform);
    let mut grants = platform.acquire(HOST).read(&buffer.range(0..8)).wait().unwrap();
    for shape in [&[7][..], &[2, 5], &[], &[8, 0], &[u64::MAX, u64::MAX, 8], &[1 << 63, 2, 4]] {
        let (cause, kept) = refused(dlpack::export::<u32>(grants, &buffer.range(0..8), shape));
        assert!(
            matches!(&cause, ExportError::Shape { bytes: 32, shape: asked, .. } if *asked == shape),
            "{cause}"
        );
        grants = kept;
    }
    let (cause, grants) = refused(dlpack::export::<u32>(grants, &buffer, &[24]));
    assert!(matches!(cause, ExportError::View(ViewError::OutsideGrant { .. })), "{cause}");
    let other = numbers(&platform);
    let (cause, grants) = refused(dlpack::export::<u32>(grants, &other, &[24]));
    assert!(matches!(cause, ExportError::View(ViewError::NotGranted { .. })), "{cause}");
    // Without elements there is no memory, whatever the other extents.
    let lent = dlpack::export::<u32>(grants, &buffer.range(3..3), &[u64::MAX, 0]).unwrap().into_versioned();
    // SAFETY: live until it is deleted.
    assert!(unsafe { lent.as_ref() }.dl_tensor.data.is_null());
    // SAFETY: just made, and no other consumer has it.
    drop(unsafe { Tensor::from_versioned(lent.as_ptr()) });
    assert!(platform.acquire(HOST).write(&buffer).try_now().is_ok());
}

#[test]
fn an_export_that_is_not_handed_out_rolls_back() {
    let platform = platform();
    let buffer = numbers(&platform);
    let grants = platform.acquire(HOST).write(&buffer).wait().unwrap();
    drop(dlpack::export::<u32>(grants, &buffer, &[24]).unwrap());
    assert!(matches!(buffer.read(), Err(AcquireError::Poisoned { restorable: false, .. })));
    let grants = platform.acquire(HOST).write(&buffer).wait().unwrap();
    dlpack::export::<u32>(grants, &buffer, &[24]).unwrap().into_grants().release().unwrap();
    assert_eq!(buffer.read().unwrap()[1], 8, "what it had written stands");
}

#[test]
fn a_structure_without_a_deleter_has_nothing_to_delete() {
    let mut elements = [1_u8, 2, 3];
    let (mut shape, device) = ([3_i64], DLDevice { device_type: CPU, device_id: 0 });
    let dl_tensor = DLTensor {
        data: NonNull::from(&mut elements).as_ptr().cast(),
        device,
        ndim: 1,
        dtype: u8::TYPE,
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let mut managed = DLManagedTensor { dl_tensor, manager_ctx: null_mut(), deleter: None };
    // SAFETY: all of it lives to the end of this function.
    let tensor = unsafe { Tensor::from_legacy(&raw mut managed) }.unwrap();
    assert_eq!(tensor.as_slice::<u8>().unwrap(), [1, 2, 3]);
}

/// Deletes a tensor as its consumer does.
///
/// # Safety
/// The one call of the deleter.
unsafe fn delete_as_consumer(lent: NonNull<DLManagedTensorVersioned>) {
    // SAFETY: the caller's word.
    unsafe { lent.as_ref().deleter.expect("ours has one")(lent.as_ptr()) }
}

#[test]
fn what_is_granted_to_several_is_lent_to_several_and_each_is_deleted_by_itself() {
    let platform = platform();
    let buffer = numbers(&platform);
    let lent = || {
        let grants = platform.acquire(HOST).read(&buffer).wait().unwrap();
        dlpack::export::<u32>(grants, &buffer, &[4, 6]).unwrap().into_versioned()
    };
    let [first, second] = [lent(), lent()];
    // SAFETY: just made, and both for reading.
    let tensor = unsafe { Tensor::from_versioned(first.as_ptr()) }.unwrap();
    // SAFETY: no consumer has used it.
    unsafe { delete_as_consumer(second) };
    assert_eq!(tensor.as_slice::<u32>().unwrap()[23], 162, "the first is there as before");
    assert!(platform.acquire(HOST).write(&buffer).try_now().unwrap_err().is_busy());
    drop(tensor);
    assert!(platform.acquire(HOST).write(&buffer).try_now().is_ok());
}

/// Frameworks keep tensors in caches of threads, which go when the thread has lost its own values.
#[test]
fn a_thread_that_ends_deletes_what_it_keeps() {
    thread_local! {
        static CACHE: std::cell::RefCell<Vec<Tensor>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let platform = platform();
    let buffer = numbers(&platform);
    std::thread::scope(|scope| {
        let keeps = scope.spawn(|| {
            CACHE.with(|_| {});
            let grants = platform.acquire(HOST).read_write(&buffer).wait().unwrap();
            let lent = dlpack::export::<u32>(grants, &buffer, &[24]).unwrap().into_versioned();
            // SAFETY: within the tensor, which is for writing.
            unsafe { lent.as_ref().dl_tensor.data.cast::<u32>().write(4711) };
            // SAFETY: just made, and no other consumer has it.
            let tensor = unsafe { Tensor::from_versioned(lent.as_ptr()) }.unwrap();
            CACHE.with(|cache| cache.borrow_mut().push(tensor));
        });
        keeps.join().unwrap();
    });
    assert_eq!(buffer.read().unwrap()[..2], [4711, 8], "the deleter commits");
}

#[test]
fn a_tensor_that_goes_in_a_panic_is_deleted_once() {
    let platform = platform();
    let buffer = numbers(&platform);
    let (theirs, deleted) = taken(|_| {});
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let grants = platform.acquire(HOST).read_write(&buffer).wait().unwrap();
        let lent = dlpack::export::<u32>(grants, &buffer, &[24]).unwrap().into_versioned();
        // SAFETY: just made, and no other consumer has it.
        let own = unsafe { Tensor::from_versioned(lent.as_ptr()) }.unwrap();
        let storage = platform.buffer_from(own.into_foreign::<u32>().unwrap()).unwrap();
        let _both = (theirs.unwrap(), storage);
        panic!("in the middle");
    }));
    assert!(told.is_err());
    assert_eq!(count(&deleted), 1);
    assert!(platform.acquire(HOST).write(&buffer).try_now().is_ok(), "the grants have ended");
}

#[test]
fn i24_a_tensor_whose_block_is_kept_goes_with_the_block() {
    let platform = platform();
    let (tensor, deleted) = taken(|_| {});
    let buffer = platform.buffer_from(tensor.unwrap().into_foreign::<f32>().unwrap()).unwrap();
    let grants = platform.acquire(HOST).read(&buffer).wait().unwrap();
    let kept = grants.block(&buffer).unwrap().cloned().unwrap();
    grants.release().unwrap();
    let foreign = buffer.into_storage::<Foreign<f32, Tensor>>().unwrap();
    assert_eq!(foreign.as_slice(), [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
    assert_eq!(foreign.into_owner().unwrap_err()[5], 5.5, "a copy");
    assert_eq!(count(&deleted), 0, "the block is over its memory");
    drop(kept);
    assert_eq!(count(&deleted), 1);
}

#[test]
fn a_deleter_may_call_back() {
    struct CallsBack(Platform, Option<Buffer<f32>>, Box<DLManagedTensorVersioned>, Arc<AtomicUsize>);
    unsafe extern "C" fn calls_back(managed: *mut DLManagedTensorVersioned) {
        // SAFETY: the consumer's one call, of what is made below.
        let context = unsafe { Box::from_raw((*managed).manager_ctx.cast::<CallsBack>()) };
        let CallsBack(platform, other, theirs, called) = *context;
        let other = other.unwrap();
        assert_eq!(other.read().unwrap()[0], 0.5);
        // This deletes a tensor within the deletion of one.
        drop(other);
        assert_eq!(platform.buffer_from(vec![1_u8; 5]).unwrap().into_vec().unwrap(), [1; 5]);
        drop(theirs);
        called.fetch_add(1, Ordering::Relaxed);
    }
    let (platform, called) = (platform(), Arc::new(AtomicUsize::new(0)));
    let (tensor, deleted) = taken(|_| {});
    let other = platform.buffer_from(tensor.unwrap().into_foreign::<f32>().unwrap()).unwrap();
    let (mut elements, mut shape) = ([1_u8, 2, 3], [3_i64]);
    let dl_tensor = DLTensor {
        data: NonNull::from(&mut elements).as_ptr().cast(),
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim: 1,
        dtype: u8::TYPE,
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    };
    let deleter = Some(calls_back as unsafe extern "C" fn(*mut DLManagedTensorVersioned));
    let mut managed = Box::new(DLManagedTensorVersioned {
        version: VERSION,
        manager_ctx: null_mut(),
        deleter,
        flags: 0,
        dl_tensor,
    });
    let ptr = &raw mut *managed;
    let context = CallsBack((*platform).clone(), Some(other), managed, called.clone());
    // SAFETY: live, as the context is not dropped before the deleter has it.
    unsafe { (*ptr).manager_ctx = Box::into_raw(Box::new(context)).cast() };
    // SAFETY: all of it lives until the deleter is called, and the elements to the end of this function.
    let tensor = unsafe { Tensor::from_versioned(ptr) }.unwrap();
    let buffer = platform.buffer_from(tensor.into_foreign::<u8>().unwrap()).unwrap();
    assert_eq!(*buffer.read().unwrap(), [1, 2, 3]);
    drop(buffer);
    assert_eq!((count(&called), count(&deleted)), (1, 1));
}

#[test]
fn extents_and_strides_at_their_edges() {
    static mut SHAPE: [i64; 4] = [1, 2, 1, 3];
    static mut STRIDES: [i64; 4] = [-9, 3, i64::MIN, 1];
    static mut BACKWARDS: [i64; 4] = [6, -3, 3, 1];
    static mut GAPS: [i64; 4] = [6, 3, 3, 2];
    static mut EMPTY: [i64; 4] = [i64::MAX, i64::MAX, 0, i64::MAX];
    let strides = |shape: *mut [i64; 4], strides: *mut [i64; 4]| {
        move |managed: &mut DLManagedTensorVersioned| {
            let tensor = &mut managed.dl_tensor;
            (tensor.ndim, tensor.shape, tensor.strides) = (4, shape.cast(), strides.cast());
        }
    };
    let (tensor, _) = taken(strides(&raw mut SHAPE, &raw mut STRIDES));
    assert_eq!(
        tensor.unwrap().as_slice::<f32>().unwrap().len(),
        6,
        "nobody steps in a dimension of one element"
    );
    for (found, axis, stride, expected) in [(&raw mut BACKWARDS, 1, -3, 3), (&raw mut GAPS, 3, 2, 1)] {
        let (refused, deleted) = taken(strides(&raw mut SHAPE, found));
        let shape = vec![1, 2, 1, 3];
        assert_eq!(refused.unwrap_err(), ImportError::Stride { axis, stride, expected, shape });
        assert_eq!(count(&deleted), 1);
    }
    let (empty, _) = taken(strides(&raw mut EMPTY, &raw mut GAPS));
    let empty = empty.unwrap();
    assert_eq!((empty.len(), empty.as_slice::<f32>().unwrap().len()), (0, 0));
    // The end of the memory counts with its offset.
    let end = isize::MAX as u64;
    let (refused, deleted) = taken(|managed| managed.dl_tensor.byte_offset = end - 23);
    assert!(matches!(refused.unwrap_err(), ImportError::TooLarge { .. }));
    assert_eq!(count(&deleted), 1);
    // Elements without bits are of no type that Rust has, however many they are.
    static mut MANY: [i64; 1] = [i64::MAX];
    let none = DLDataType { code: FLOAT, bits: 0, lanes: 0 };
    let (tensor, _) = taken(|managed| {
        (managed.dl_tensor.ndim, managed.dl_tensor.shape) = (1, (&raw mut MANY).cast());
        (managed.dl_tensor.strides, managed.dl_tensor.dtype) = (null_mut(), none);
    });
    assert!(matches!(tensor.unwrap().as_slice::<f32>(), Err(ImportError::Type { .. })));
}

#[test]
fn a_region_that_is_granted_for_writing_in_part_is_read_only() {
    let platform = platform();
    let (buffer, other) = (numbers(&platform), numbers(&platform));
    let mut grants = platform
        .acquire(HOST)
        .read(&buffer.range(0..12))
        .read_write(&buffer.range(12..24))
        .read_write(&other)
        .wait()
        .unwrap();
    grants.slice_mut::<u32>(&other).unwrap()[3] = 5;
    grants.slice_mut::<u32>(&buffer.range(12..24)).unwrap()[0] = 6;
    let export = dlpack::export::<u32>(grants, &buffer, &[24]).unwrap();
    assert!(export.is_read_only());
    let lent = export.into_versioned();
    // SAFETY: no consumer has used it.
    unsafe { delete_as_consumer(lent) };
    // What was granted beside the tensor is committed with it.
    assert_eq!((buffer.read().unwrap()[12], other.read().unwrap()[3]), (6, 5));
}

#[test]
fn an_odd_view_of_bytes_is_no_tensor() {
    let platform = platform();
    let buffer = platform.buffer_from((0..64).collect::<Vec<u8>>()).unwrap();
    let reading = || platform.acquire(HOST).read(&buffer).wait().unwrap();
    let at = buffer.read().unwrap().as_ptr().addr() as u64;
    let odd = (4 - at % 4) % 4 + 1;
    let (cause, _) = refused(dlpack::export::<u32>(reading(), &buffer.range(odd..odd + 8), &[2]));
    assert!(matches!(cause, ExportError::View(ViewError::Alignment { .. })), "{cause}");
    let (cause, _) = refused(dlpack::export::<u32>(reading(), &buffer.range(odd - 1..odd + 5), &[1]));
    assert!(matches!(cause, ExportError::View(ViewError::Size { .. })), "{cause}");
}

/// A newer minor version and flags that it adds mean what they meant before.
#[test]
fn flags_and_minor_versions_of_others_are_understood() {
    let (tensor, _) = taken(|managed| {
        (managed.version.minor, managed.flags) = (VERSION.minor + 7, FLAG_IS_COPIED | 1 << 40);
    });
    assert!(!tensor.unwrap().is_read_only());
    let (tensor, _) = taken(|managed| managed.flags = FLAG_READ_ONLY | FLAG_IS_COPIED);
    assert_eq!(tensor.unwrap().into_foreign::<f32>().unwrap_err().cause, ImportError::ReadOnly);
}

/// The deleter may be called on any thread, so no thread counts as the holder.
#[test]
fn who_exports_holds_no_grant_any_more() {
    let platform = platform();
    let (first, second) = (numbers(&platform), numbers(&platform));
    let grants = platform.acquire(HOST).read_write(&second).wait().unwrap();
    assert!(second.raw().is_held_here());
    let lent = dlpack::export::<u32>(grants, &second, &[24]).unwrap().into_versioned();
    assert!(!second.raw().is_held_here());
    // A thread that held the second must not wait for the first.
    assert_eq!(first.read().unwrap()[0], 1);
    // SAFETY: no consumer has used it.
    unsafe { delete_as_consumer(lent) };
}
