//! A map for a handful of entries. One allocation of the size that is needed: a tree keeps room for eleven.

/// A map of few keys, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Few<K, V>(Vec<(K, V)>);

impl<K, V> Default for Few<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> Few<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.place(key).ok().and_then(|place| self.0.get(place)).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.place(key).ok().and_then(|place| self.0.get_mut(place)).map(|(_, value)| value)
    }

    /// The value of a key, which is made if there is none.
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let place = self.place(&key).unwrap_or_else(|place| {
            // One by one: most maps have four entries in the end, and a vector starts with as many.
            self.0.insert(place, (key, V::default()));
            place
        });
        &mut self.0[place].1
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    fn place(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_kept_in_order() {
        let mut few = Few::default();
        for key in [3, 1, 2, 3] {
            *few.get_or_default(key) += 1;
        }
        assert_eq!(few.iter().collect::<Vec<_>>(), [(&1, &1), (&2, &1), (&3, &2)]);
        assert_eq!((few.get(&3), few.get(&4), few.len()), (Some(&2), None, 3));
        few.values_mut().for_each(|value| *value = 0);
        assert_eq!(few.get_mut(&1).copied(), Some(0));
    }
}
