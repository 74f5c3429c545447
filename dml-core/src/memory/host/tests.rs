use super::*;

#[test]
fn i24_external_storage_comes_back_as_it_was() {
    let data: Vec<u32> = (0..100).map(|i| i * 7 + 1).collect();
    let address = data.as_ptr();
    let owner = Arc::new(Owned::new(data));
    assert_eq!(HostMemory::of(owner.clone()).len(), 400);
    let back = Arc::into_inner(owner).expect("the memory was dropped").into_inner();
    assert_eq!(back.as_ptr(), address);
    assert_eq!(back[99], 694);
    let boxed = Owned::new(back.into_boxed_slice());
    assert_eq!(boxed.into_inner().len(), 100);
}

#[test]
fn loans_copy_their_bytes_and_come_back() {
    let (mut from, mut to) = (HostMemory::zeroed(16).unwrap(), HostMemory::zeroed(16).unwrap());
    from.bytes_mut().copy_from_slice(&std::array::from_fn::<u8, 16, _>(|i| i as u8));
    let (source, mut target) = (from.source(Span::new(8, 12)), to.target(Span::new(4, 8)));
    target.copy_from(&source);
    assert!(from.is_lent() && to.is_lent());
    let (first, second) = source.split_at(3);
    drop(first);
    assert!(from.is_lent());
    drop((second, target));
    assert!(!from.is_lent() && !to.is_lent());
    assert_eq!(to.bytes(), [0, 0, 0, 0, 8, 9, 10, 11, 0, 0, 0, 0, 0, 0, 0, 0]);
    // SAFETY: no code writes the memory.
    let misaligned = unsafe { from.span().slice(Span::new(1, 9)).as_slice::<u32>() };
    assert_eq!(misaligned.unwrap_err(), CastError::Alignment { element_align: 4 });
    // SAFETY: as above.
    let ragged = unsafe { from.span().slice(Span::new(0, 7)).as_slice::<u32>() };
    assert_eq!(ragged.unwrap_err(), CastError::Size { bytes: 7, element_bytes: 4 });
}

#[test]
#[should_panic(expected = "is lent")]
fn memory_that_is_lent_is_not_looked_at() {
    let mut memory = HostMemory::zeroed(16).unwrap();
    let _target = memory.target(Span::new(4, 8));
    let _ = memory.bytes();
}

#[test]
#[should_panic(expected = "bytes 3..5 of 4 lent")]
fn a_loan_reaches_no_further_than_it_goes() {
    let mut target = HostMemory::zeroed(16).unwrap().target(Span::new(4, 8));
    target.write(3, &[1, 2]);
}
