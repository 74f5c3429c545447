//! A cache of an arena's compiled programs: each source is compiled once, however many threads request it at
//! once.
//!
//! ```text
//!   first caller  ──▶ compiling ──▶ program, for all callers
//!   other callers ──▶ wait ─────────▶ the same program, or the same error
//! ```
//! 1. At most [`KEPT`] programs stay cached. The least recently used one is evicted first. A kernel keeps its
//!    program alive beyond that.
//! 2. A source that includes files is compiled for each caller, because changes of these files are not
//!    detected.
//! 3. Errors are not cached: the next caller compiles again.

use super::source::includes;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use std::collections::HashMap;
use std::fmt;

/// Maximum number of cached programs: more than an application has kernels in use. A program of PoCL takes
/// about 66 KiB.
const KEPT: usize = 128;

/// The source and the options.
type Key = (String, String);

/// The programs of one arena.
pub(crate) struct Programs<P, E> {
    entries: Mutex<Entries<P, E>>,
    /// Notified when a compilation has ended.
    ended: Condvar,
}

struct Entries<P, E> {
    by_key: HashMap<Key, Entry<P, E>>,
    /// Number of uses, which orders the entries by their last use.
    uses: u64,
}

/// The result of a compilation.
type Made<P, E> = Result<Arc<P>, E>;

enum Entry<P, E> {
    /// A thread is compiling. Waiters find the result here.
    Compiling(Arc<Mutex<Option<Made<P, E>>>>),
    Ready {
        program: Arc<P>,
        last_use: u64,
    },
}

impl<P, E: Clone> Programs<P, E> {
    pub(crate) fn new() -> Self {
        let entries = Entries { by_key: HashMap::new(), uses: 0 };
        Self { entries: Mutex::new(entries), ended: Condvar::new() }
    }

    /// Returns the program of a source. Calls `compile` unless the program is cached or another thread
    /// compiles it.
    pub(crate) fn get(
        &self,
        source: &str,
        options: &str,
        compile: impl FnOnce() -> Result<P, E>,
    ) -> Made<P, E> {
        if includes(source, options) {
            return compile().map(Arc::new);
        }
        let key = (source.to_owned(), options.to_owned());
        let mut entries = self.entries.lock();
        while let Some(entry) = entries.find(&key) {
            match entry {
                Entry::Ready { program, .. } => return Ok(program.clone()),
                Entry::Compiling(result) => {
                    let result = result.clone();
                    entries = self.ended.wait(entries);
                    // A statement of its own, so that the result's lock is released before the return.
                    let told = result.lock().clone();
                    if let Some(told) = told {
                        return told;
                    }
                }
            }
        }
        let result = Arc::new(Mutex::new(None));
        entries.by_key.insert(key.clone(), Entry::Compiling(result.clone()));
        drop(entries);
        // A compilation that unwinds leaves no result, and one of the waiters compiles.
        let compiling = Compiling { programs: self, key: Some(key) };
        let made = compile().map(Arc::new);
        *result.lock() = Some(made.clone());
        compiling.end(made.as_ref().ok());
        made
    }

    /// Replaces the entry of a compilation by its program, if there is one, and wakes the waiters.
    fn end(&self, key: &Key, program: Option<&Arc<P>>) {
        let mut entries = self.entries.lock();
        entries.by_key.remove(key);
        let evicted = program.and_then(|program| {
            entries.uses += 1;
            let last_use = entries.uses;
            entries.by_key.insert(key.clone(), Entry::Ready { program: program.clone(), last_use });
            entries.evict()
        });
        self.ended.notify_all();
        drop(entries);
        // Dropping a program calls its driver.
        drop(evicted);
    }
}

impl<P, E> Entries<P, E> {
    fn find(&mut self, key: &Key) -> Option<&Entry<P, E>> {
        self.uses += 1;
        let now = self.uses;
        let entry = self.by_key.get_mut(key)?;
        if let Entry::Ready { last_use, .. } = entry {
            *last_use = now;
        }
        Some(entry)
    }

    /// Removes the least recently used program if there are more than [`KEPT`].
    fn evict(&mut self) -> Option<Entry<P, E>> {
        let ready = self.by_key.iter().filter_map(|(key, entry)| match entry {
            Entry::Ready { last_use, .. } => Some((*last_use, key)),
            Entry::Compiling(_) => None,
        });
        let ready: Vec<_> = ready.collect();
        let oldest = ready.iter().min().filter(|_| ready.len() > KEPT).map(|(_, key)| (*key).clone())?;
        self.by_key.remove(&oldest)
    }
}

/// A compilation in flight.
struct Compiling<'a, P, E: Clone> {
    programs: &'a Programs<P, E>,
    /// `None` once it has ended.
    key: Option<Key>,
}

impl<P, E: Clone> Compiling<'_, P, E> {
    fn end(mut self, program: Option<&Arc<P>>) {
        if let Some(key) = self.key.take() {
            self.programs.end(&key, program);
        }
    }
}

impl<P, E: Clone> Drop for Compiling<'_, P, E> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.programs.end(&key, None);
        }
    }
}

impl<P, E> fmt::Debug for Programs<P, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Programs({})", self.entries.lock().by_key.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    /// Requests one source on `threads` threads at once. The first compilation goes on until all other
    /// threads wait for it.
    fn at_once(
        threads: u32,
        compile: impl Fn(u32) -> Result<u32, String> + Sync,
    ) -> Vec<Result<u32, String>> {
        let (programs, count) = (Programs::new(), AtomicU32::new(0));
        // Held by the map, the compiling thread and each waiter.
        let held = || match programs.entries.lock().by_key.values().next() {
            Some(Entry::Compiling(result)) => Arc::strong_count(result),
            _ => 0,
        };
        let ask = || {
            let compile = || {
                let number = count.fetch_add(1, SeqCst);
                while number == 0 && held() <= threads as usize {
                    std::thread::yield_now();
                }
                compile(number)
            };
            catch_unwind(AssertUnwindSafe(|| programs.get("source", "", compile)))
                .unwrap_or_else(|_| Err("a panic".to_owned()))
                .map(|program| *program)
        };
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        })
    }

    #[test]
    fn threads_that_ask_at_once_share_one_compilation() {
        assert_eq!(at_once(16, Ok), [const { Ok(0) }; 16]);
        let refused = at_once(16, |number| Err(format!("refused {number}")));
        assert_eq!(refused, vec![Err("refused 0".to_owned()); 16]);
        // One compilation unwinds, and a waiter compiles.
        let told = at_once(16, |number| if number == 0 { panic!("a compiler") } else { Ok(number) });
        assert_eq!(told.iter().filter(|told| **told == Ok(1)).count(), 15, "{told:?}");
        assert_eq!(told.iter().filter(|told| told.is_err()).count(), 1, "{told:?}");
    }

    #[test]
    fn errors_are_not_kept() {
        let programs = Programs::<u32, &str>::new();
        assert_eq!(programs.get("a", "", || Err("no memory")), Err("no memory"));
        assert_eq!(programs.get("a", "", || Ok(7)).as_deref(), Ok(&7));
        assert_eq!(programs.get("a", "", || panic!("it is there")).as_deref(), Ok(&7));
        assert_eq!(programs.get("a", "-D", || Ok(8)).as_deref(), Ok(&8));
    }

    #[test]
    fn programs_that_are_not_used_go() {
        let programs = Programs::<usize, ()>::new();
        let name = |index: usize| format!("source {index}");
        let made: Vec<_> = (0..3 * KEPT)
            .map(|index| {
                // The first one is used in every round.
                programs.get(&name(0), "", || Ok(0)).unwrap();
                Arc::downgrade(&programs.get(&name(index), "", || Ok(index)).unwrap())
            })
            .collect();
        assert_eq!(made.iter().filter(|program| program.strong_count() > 0).count(), KEPT);
        assert!(made[0].strong_count() > 0 && made[2 * KEPT + 1].strong_count() > 0);
        assert!(made[1].strong_count() == 0);
    }

    #[test]
    fn sources_that_include_files_are_compiled_each_time() {
        let programs = Programs::<u32, ()>::new();
        let count = AtomicU32::new(0);
        for (source, options) in [
            ("#include \"a.h\"", ""),
            ("  #  include <a.h>", ""),
            ("#inc\\\nlude MACRO", ""),
            ("#import \"a.h\"", ""),
            ("kernel void k()", "-include a.h"),
            ("kernel void k()", "--pre-include=a.h"),
        ] {
            let compile = || Ok(count.fetch_add(1, SeqCst));
            let [first, again] = [(); 2].map(|()| *programs.get(source, options, compile).unwrap());
            assert_ne!(first, again, "{source} {options}");
        }
        assert!(!includes("kernel void embedding() {}", "-I /usr/include -DX"));
    }
}
