//! Work-group sizes: the limits of a kernel, and the choice of sizes that a launch leaves open.

/// Default size of a work-group, in work-items.
const USUAL: u64 = 256;

/// The limits on the work-groups of a kernel on its device, in work-items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The maximum size of a group.
    pub(crate) total: u64,
    /// The maximum along each dimension.
    pub(crate) axes: [u64; 3],
    /// The only allowed size, if the source fixes one.
    pub(crate) required: Option<[u64; 3]>,
}

impl Limits {
    /// Checks the sizes of a group. Zero along a dimension leaves that size open.
    ///
    /// # Errors
    /// A message with the limit that is exceeded.
    pub(crate) fn check(&self, local: [u64; 3]) -> Result<(), String> {
        if let Some(required) = self.required {
            let fits = local.iter().zip(required).all(|(&local, required)| local == 0 || local == required);
            let [x, y, z] = required;
            return if fits { Ok(()) } else { Err(format!("its source requires groups of {x} x {y} x {z}")) };
        }
        if let Some(axis) = (0..3).find(|&axis| local[axis] > self.axes[axis]) {
            return Err(format!("the device allows {} along dimension {axis}", self.axes[axis]));
        }
        let product = local.iter().fold(1_u64, |product, &size| product.saturating_mul(size.max(1)));
        match product > self.total {
            true => Err(format!("it allows {} in a group on this device, not {product}", self.total)),
            false => Ok(()),
        }
    }

    /// Chooses the sizes that a launch leaves open: the default number of work-items, along the first open
    /// dimensions.
    pub(crate) fn choose(&self, local: [u64; 3]) -> [u64; 3] {
        if let Some(required) = self.required {
            return required;
        }
        let fixed = local.iter().fold(1_u64, |product, &size| product.saturating_mul(size.max(1)));
        let mut left = (USUAL.min(self.total) / fixed).max(1);
        let mut chosen = local;
        for axis in 0..3 {
            if local[axis] == 0 {
                chosen[axis] = left.min(self.axes[axis]).max(1);
                left /= chosen[axis];
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { total: 512, axes: [512, 512, 64], required: None };

    #[test]
    fn a_group_is_refused_with_the_limit_that_it_exceeds() {
        for fits in [[512, 1, 1], [16, 32, 1], [0, 0, 0], [0, 512, 1], [8, 0, 64]] {
            assert_eq!(LIMITS.check(fits), Ok(()), "{fits:?}");
        }
        for (local, reason) in [
            ([513, 1, 1], "the device allows 512 along dimension 0"),
            ([1, 1, 65], "the device allows 64 along dimension 2"),
            ([32, 32, 1], "it allows 512 in a group on this device, not 1024"),
            ([512, 512, 64], "it allows 512 in a group on this device, not 16777216"),
        ] {
            assert_eq!(LIMITS.check(local), Err(reason.to_owned()));
        }
    }

    #[test]
    fn an_open_size_has_one_meaning_along_every_dimension() {
        for (local, chosen) in [
            ([0, 1, 1], [256, 1, 1]),
            ([0, 0, 0], [256, 1, 1]),
            ([1, 0, 1], [1, 256, 1]),
            ([1, 1, 0], [1, 1, 64]),
            ([64, 0, 1], [64, 4, 1]),
            ([512, 0, 1], [512, 1, 1]),
            ([7, 3, 1], [7, 3, 1]),
        ] {
            assert_eq!(LIMITS.choose(local), chosen, "{local:?}");
            assert_eq!(LIMITS.check(chosen), Ok(()));
        }
        let narrow = Limits { total: 48, ..LIMITS };
        assert_eq!(narrow.choose([0, 1, 1]), [48, 1, 1]);
    }

    #[test]
    fn a_size_that_the_source_fixes_is_the_only_one() {
        let fixed = Limits { required: Some([16, 4, 1]), ..LIMITS };
        assert_eq!(fixed.check([16, 4, 1]).and(fixed.check([0, 4, 1])), Ok(()));
        assert_eq!(fixed.check([16, 8, 1]), Err("its source requires groups of 16 x 4 x 1".to_owned()));
        assert_eq!(fixed.choose([0, 0, 1]), [16, 4, 1]);
    }
}
