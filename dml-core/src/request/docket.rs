//! What a request consists of, from its first item to the end of its grants, in one allocation. A thread
//! keeps the allocation of an ended request for its next one.

use crate::base::access::{Claim, Claims};
use crate::base::guard::quietly;
use crate::base::id::{ArenaId, BufferId, KernelId, PlatformId};
use crate::base::sync::{Mutex, StaticMutex, thread_local};
use crate::buffer::RawBuffer;
use crate::buffer::error::AcquireError;
use crate::memory::error::TransferError;
use crate::request::acquire::Purpose;
use crate::request::grant::Grant;
use crate::request::kernels::Kernels;
use crate::request::launch::LaunchArg;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::panic::Location;

/// Number of ended requests whose allocations a thread keeps.
const KEPT: usize = 8;
/// Number of allocations that move between threads at once.
const BATCH: usize = KEPT / 2;
/// Number of allocations that are kept for any thread. It bounds their memory.
const KEPT_BY_ALL: usize = 256;
/// Number of buffers up to which an allocation is kept.
const KEPT_PARTS: usize = 32;

/// The request of one builder call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) buffer: BufferId,
    pub(crate) claim: Claim,
}

/// The items of a request, in their order.
pub(super) type Items = SmallVec<[Item; 3]>;

/// The request of an acquire on one buffer.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) buffer: RawBuffer,
    pub(super) claims: Claims,
}

/// An item of a request. It borrows the buffer, so that no reference count changes. It consists of words: a
/// value of smaller fields is slow to move.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) buffer: &'a RawBuffer,
    pub(super) claim: Claim,
}

/// The grants of a request.
#[derive(Debug)]
pub(super) struct Contents {
    /// The grants, at the end in canonical order, and behind them closed ones to be used again. A value that
    /// is written in place is not moved.
    all: Vec<Grant>,
    /// The number of grants.
    count: usize,
    /// The items in the order of the request, where they are not the claims of `grants` in their order.
    pub(super) listed: Option<Items>,
    pub(super) head: Head,
    /// An allocation for the next request.
    free: Vec<Wanted<'static>>,
    /// An allocation for the arguments of a kernel.
    arguments: Vec<LaunchArg>,
    /// Whether a launcher has launched under these grants.
    pub(super) has_launched: bool,
    /// Whether a kernel has been launched whose end ends the grants.
    pub(super) has_started: bool,
    /// What else is known of launches under the grants.
    pub(super) launched: Option<Box<Launched>>,
}

/// What a request says apart from its buffers.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) platform: PlatformId,
    /// The arena, unless there is none.
    pub(super) arena: ArenaId,
    pub(super) no_arena: Option<Box<AcquireError>>,
    /// The error of the first item that cannot be acquired, whatever the others are.
    pub(super) misfit: Option<Box<AcquireError>>,
    pub(super) kernel: Option<KernelId>,
    pub(super) origin: Option<&'static Location<'static>>,
    pub(super) purpose: Purpose,
}

impl Head {
    pub(super) const NONE: Self = Self {
        platform: PlatformId(0),
        arena: ArenaId(0),
        no_arena: None,
        misfit: None,
        kernel: None,
        origin: None,
        purpose: Purpose::Use,
    };
}

/// What is known of launches under grants.
#[derive(Debug)]
pub(super) struct Launched {
    /// The first failure of a copy that was in flight with the grants.
    pub(super) arrived: Result<(), AcquireError>,
    /// The kernels launched under the grants. The lock makes the value `Sync`.
    pub(super) kernels: Option<Mutex<Kernels>>,
    /// The first failure of a kernel launched under the grants.
    pub(super) ended: Result<u64, TransferError>,
}

/// Returns the items of what is wanted.
pub(super) fn items(wanted: &[Wanted<'_>]) -> Items {
    wanted.iter().map(|wanted| Item { buffer: wanted.buffer.id(), claim: wanted.claim }).collect()
}

/// Returns one part for each buffer, in descending order.
pub(super) fn parts(wanted: &mut [Wanted<'_>]) -> Vec<Part> {
    wanted.sort_by_key(|wanted| std::cmp::Reverse(wanted.buffer.id()));
    let of_one = wanted.chunk_by(|one, next| one.buffer == next.buffer);
    let part = |all: &[Wanted<'_>]| Part {
        buffer: all[0].buffer.clone(),
        claims: Claims::new(all.iter().map(|wanted| wanted.claim)),
    };
    of_one.map(part).collect()
}

impl Contents {
    fn new() -> Self {
        Self {
            all: Vec::new(),
            count: 0,
            listed: None,
            head: Head::NONE,
            free: Vec::new(),
            arguments: Vec::new(),
            has_launched: false,
            has_started: false,
            launched: None,
        }
    }

    #[inline(always)]
    pub(super) fn grants(&self) -> &[Grant] {
        &self.all[..self.count]
    }

    #[inline(always)]
    pub(super) fn grants_mut(&mut self) -> &mut [Grant] {
        &mut self.all[..self.count]
    }

    /// Adds a closed grant, to be opened.
    #[inline(always)]
    pub(super) fn add(&mut self) -> &mut Grant {
        if self.count == self.all.len() {
            self.grow();
        }
        self.count += 1;
        &mut self.all[self.count - 1]
    }

    #[inline(never)]
    fn grow(&mut self) {
        self.all.push(Grant::closed());
    }

    /// Adds a grant.
    pub(super) fn push(&mut self, grant: Grant) {
        *self.add() = grant;
    }

    /// Removes the last grant.
    pub(super) fn pop(&mut self) -> Option<Grant> {
        self.all.truncate(self.count);
        self.count = self.count.saturating_sub(1);
        self.all.pop()
    }

    /// Forgets the grants, all of which ended in the common case.
    #[inline(always)]
    pub(super) fn have_ended(&mut self) {
        self.count = 0;
    }

    /// Removes the grants that have ended.
    pub(super) fn drop_ended(&mut self) {
        self.all.retain(Grant::is_open);
        self.count = self.all.len();
    }

    /// Returns the items in the order of the request.
    pub(super) fn items(&self) -> Items {
        match &self.listed {
            Some(listed) => listed.clone(),
            None => {
                let items = self.grants().iter().flat_map(|grant| {
                    grant.claims.iter().map(|claim| Item { buffer: grant.buffer.id(), claim: *claim })
                });
                items.collect()
            }
        }
    }

    /// Returns the allocation of an earlier request.
    #[inline(always)]
    pub(super) fn allocation<'a>(&mut self) -> Vec<Wanted<'a>> {
        std::mem::take(&mut self.free)
    }

    /// Keeps the allocation of what was wanted.
    #[inline(always)]
    pub(super) fn keep_allocation(&mut self, mut wanted: Vec<Wanted<'_>>) {
        wanted.clear();
        // It is collected in place.
        self.free = wanted.into_iter().map(|_| unreachable!("it is empty")).collect();
    }

    /// Keeps the allocation of a kernel's arguments.
    pub(super) fn keep_arguments(&mut self, mut arguments: Vec<LaunchArg>) {
        // A buffer's last handle runs foreign code.
        arguments.drain(..).for_each(quietly);
        self.arguments = arguments;
    }

    /// Drops the grants, in reverse canonical order.
    pub(super) fn roll_back(&mut self) {
        while let Some(grant) = self.pop() {
            drop(grant);
        }
    }

    /// Returns what is known of launches, to be changed.
    pub(super) fn launched(&mut self) -> &mut Launched {
        let new = || Box::new(Launched { arrived: Ok(()), kernels: None, ended: Ok(0) });
        self.launched.get_or_insert_with(new)
    }

    /// Returns whether nothing is in flight under the grants, as far as they know, and no copy failed.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.launched.is_none() && self.grants().iter().all(Grant::is_quiet)
    }

    /// Drops everything but the allocations.
    #[inline(always)]
    fn clear(&mut self) {
        if self.count > 0 {
            self.all.clear();
            self.count = 0;
        }
        if self.listed.is_some() {
            self.listed = None;
        }
        (self.has_launched, self.has_started) = (false, false);
        let Head { no_arena, misfit, kernel, origin, purpose, .. } = &mut self.head;
        (*kernel, *origin, *purpose) = (None, None, Purpose::Use);
        if no_arena.is_some() || misfit.is_some() {
            (*no_arena, *misfit) = (None, None);
        }
        if self.launched.is_some() {
            self.launched = None;
        }
    }
}

/// The only reference to a request's contents.
#[derive(Debug)]
pub(super) struct Docket(Option<Box<Contents>>);

/// The allocation of an ended request.
type Allocation = Box<Contents>;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "a model's macro takes no constant")]
    static FREE: RefCell<Vec<Allocation>> = RefCell::new(Vec::new());
}

/// Allocations for threads that have none left. Kernels begin on one thread and end on another one, and an
/// allocator takes long for memory that another thread frees.
static FREE_OF_ALL: StaticMutex<Vec<Allocation>> = StaticMutex::new(Vec::new());

/// Returns an allocation for the arguments of a kernel.
pub(super) fn arguments() -> Vec<LaunchArg> {
    let kept = |free: &RefCell<Vec<Allocation>>| {
        let mut free = free.borrow_mut();
        free.last_mut().map(|contents| std::mem::take(&mut contents.arguments))
    };
    FREE.try_with(kept).ok().flatten().unwrap_or_default()
}

impl Docket {
    #[inline(always)]
    pub(super) fn new() -> Self {
        let kept = FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        Self(Some(kept.unwrap_or_else(Self::of_others)))
    }

    /// Takes allocations that other threads gave back, or makes one.
    #[inline(never)]
    fn of_others() -> Box<Contents> {
        let taken = FREE.try_with(|free| {
            let free = &mut *free.borrow_mut();
            FREE_OF_ALL.try_with(|all| free.extend(all.drain(all.len().saturating_sub(BATCH)..)));
            free.pop()
        });
        taken.ok().flatten().unwrap_or_else(|| Box::new(Contents::new()))
    }

    /// Gives allocations of this thread to others.
    #[inline(never)]
    fn give_back(free: &mut Vec<Allocation>) {
        let given = free.drain(free.len() - BATCH..);
        // Those that are not needed hold nothing.
        FREE_OF_ALL.try_with(|all| all.extend(given.take(KEPT_BY_ALL.saturating_sub(all.len()))));
    }

    /// Moves the contents to a new value, and leaves none.
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Returns the contents, unless they were [taken](Self::take).
    pub(super) fn get_mut(&mut self) -> Option<&mut Contents> {
        self.0.as_deref_mut()
    }
}

impl Deref for Docket {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        self.0.as_deref().expect("its owner has not ended")
    }
}

impl DerefMut for Docket {
    fn deref_mut(&mut self) -> &mut Contents {
        self.0.as_deref_mut().expect("its owner has not ended")
    }
}

impl Drop for Docket {
    fn drop(&mut self) {
        let Some(contents) = &mut self.0 else { return };
        contents.clear();
        let Contents { all, free, arguments, .. } = &**contents;
        let is_small = all.capacity().max(free.capacity()).max(arguments.capacity()) <= KEPT_PARTS;
        let Some(contents) = self.0.take().filter(|_| is_small) else { return };
        let _ = FREE.try_with(|free| {
            let free = &mut *free.borrow_mut();
            free.push(contents);
            if free.len() > KEPT {
                Self::give_back(free);
            }
        });
    }
}
