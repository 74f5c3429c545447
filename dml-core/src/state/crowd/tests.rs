use super::*;
use crate::base::access::Access;
use crate::base::id::{DeviceId, Seq};
use crate::state::testbed::{Bench, MAIN_ARENA};
use crate::state::{Begin, BufferState, Initial, Outcome, Request};
use proptest::prelude::*;

fn request(grant: u64, kernel: u64, arena: u8, claims: impl IntoIterator<Item = Claim>) -> Request {
    let claims = Claims::new(claims);
    Request {
        kernel: KernelId(kernel),
        grant: OwnerId(grant),
        arena: ArenaId(arena),
        claims,
        is_submission: false,
    }
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let access = prop_oneof![
        4 => Just(Access::ReadOnly),
        1 => Just(Access::WriteInvalidate),
        1 => Just(Access::ReadWrite)
    ];
    let len = prop_oneof![8 => 0_u64..5, 2 => 5_u64..70, 1 => 200_u64..400];
    (0_u64..300, len, access)
        .prop_map(|(start, len, access)| Claim { span: Span::new(start, start + len), access })
}

fn any_claims() -> impl Strategy<Value = Vec<Claim>> {
    prop::collection::vec(any_claim(), 0..4)
}

/// A change of a set: an entry is added or removed, or its claims become reading ones.
#[derive(Clone, Debug)]
enum Change {
    Push(u64, u8, Vec<Claim>),
    Remove(prop::sample::Index),
    Forget(prop::sample::Index),
    Read(prop::sample::Index),
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (0_u64..40, 0_u8..3, any_claims()).prop_map(|(kernel, arena, claims)| Change::Push(kernel, arena, claims)),
        2 => any::<prop::sample::Index>().prop_map(Change::Remove),
        1 => any::<prop::sample::Index>().prop_map(Change::Forget),
        1 => any::<prop::sample::Index>().prop_map(Change::Read),
    ]
}

proptest! {
    /// A clone has no index, and is searched linearly.
    #[test]
    fn an_index_answers_as_the_entries_do(
        changes in prop::collection::vec(any_change(), 0..160),
        asked in prop::collection::vec((any_claims(), 0_u64..40), 12),
    ) {
        let mut set = Requestors::default();
        for (change, grant) in changes.into_iter().zip(1..) {
            let at = |index: prop::sample::Index, set: &Requestors| (!set.is_empty()).then(|| index.index(set.len()));
            match change {
                Change::Push(kernel, arena, claims) => {
                    set.push(Requestor::new(&request(grant, kernel, arena, claims), Phase::Preparing, Seq(0)));
                }
                Change::Remove(index) => _ = at(index, &set).map(|place| set.swap_remove(place)),
                Change::Forget(index) => _ = at(index, &set).map(|place| set.forget(set[place].grant)),
                Change::Read(index) => {
                    _ = at(index, &set).map(|place| set.set_claims(place, set[place].claims.reading()));
                }
            }
        }
        let plain = set.clone();
        prop_assert!(plain.index.is_none() && plain == set);
        prop_assert_eq!(set.arenas(), plain.arenas());
        for entry in &*plain {
            prop_assert_eq!(set.place(entry.grant), plain.place(entry.grant));
        }
        let native = |arena: ArenaId| DeviceId(arena.0.into());
        let others = |set: &Requestors, owner| {
            let users = set.users(native);
            let others = users.into_iter().filter(|user| user.owner != owner);
            others.map(|user| (user.arena, user.writes)).collect::<BTreeSet<_>>()
        };
        for owner in plain.iter().map(|entry| entry.grant).chain([OwnerId(0)]) {
            prop_assert_eq!(others(&set, owner), others(&plain, owner), "users beside {}", owner);
        }
        for (claims, kernel) in asked {
            let claims = Claims::new(claims);
            prop_assert_eq!(set.conflict(&claims, None), plain.conflict(&claims, None), "{:?}", claims);
            let kernel = KernelId(kernel);
            prop_assert_eq!(set.held_by(kernel, &claims), plain.held_by(kernel, &claims), "{:?}", claims);
            for claim in &claims {
                prop_assert_eq!(set.claim(claim.span), plain.claim(claim.span), "{}", claim.span);
                prop_assert_eq!(set.arenas_claiming(claim.span), plain.arenas_claiming(claim.span));
            }
        }
    }
}

/// If the cost of a request grew with the number of writers, this test would take minutes.
#[test]
fn very_many_disjoint_writers_are_granted_and_released() {
    const MANY: u64 = 200_000;
    let bench = Bench::new();
    let mut state = BufferState::new(&bench, 4 * MANY, Initial::External(MAIN_ARENA));
    let claim = |index: u64| Claim { span: Span::new(4 * index, 4 * index + 4), access: Access::ReadWrite };
    for index in 0..MANY {
        let begun = state.begin(&bench, &request(index + 1, index + 1, 0, [claim(index)]));
        assert_eq!(begun, Begin::Granted(Seq(0)));
    }
    // Each writer excludes other requests for its bytes.
    for index in (0..MANY).step_by(1000) {
        let begun = state.begin(&bench, &request(MANY + 1, MANY + 1, 0, [claim(index)]));
        assert!(matches!(begun, Begin::Busy { .. }), "{begun:?}");
    }
    for index in 0..MANY {
        let released = state.release(&bench, OwnerId(index + 1), Outcome::Done).expect("it was granted");
        assert_eq!(released.commit, Some(Seq(index + 1)));
    }
    assert!(state.is_idle());
}
