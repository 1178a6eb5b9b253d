//! Has the origin lost data? A process remembers enough of it to tell.
//!
//! Two things give a loss away. The incarnation is made with the data and goes with it. So another one means that
//! everything is gone, whoever noticed it first and whatever became of the heartbeats meanwhile. The run ids name the
//! servers: behind another one the data may be older. A restart changes both and is one loss: when one of them has told
//! of it, the next change of the other is ignored.

/// What is remembered of the origin.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    incarnation: Option<u64>,
    run_ids: Vec<String>,
    /// The next change of the incarnation belongs to a loss that is known.
    is_incarnation_excused: bool,
    /// The next change of the run ids belongs to a loss that is known.
    are_run_ids_excused: bool,
}

impl Witness {
    /// Takes the incarnation that a heartbeat heard. True if the origin has lost what it was told before. Before the
    /// first heartbeat nobody knows which data a call was about; `has_told` says that there was one.
    pub fn hear_incarnation(&mut self, incarnation: u64, has_told: bool) -> bool {
        let is_excused = std::mem::take(&mut self.is_incarnation_excused);
        let is_lost = match self.incarnation.replace(incarnation) {
            None => has_told,
            Some(before) => before != incarnation && !is_excused,
        };
        self.are_run_ids_excused |= is_lost;
        is_lost
    }

    /// Takes the run ids of the servers behind the origin. True if one of them is new, and may have older data.
    pub fn hear_run_ids(&mut self, run_ids: &[String]) -> bool {
        let is_excused = std::mem::take(&mut self.are_run_ids_excused);
        let before = std::mem::replace(&mut self.run_ids, run_ids.to_vec());
        let is_new = |run_id: &String| !before.contains(run_id);
        let is_other = !before.is_empty() && run_ids.iter().any(is_new) && !is_excused;
        self.is_incarnation_excused |= is_other;
        is_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regional::call::ProcessId;
    use crate::regional::model::Origin;

    const A: ProcessId = ProcessId(0xa);

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    /// The heartbeat that was under way during the loss made the process known again, and its answer came too late.
    #[test]
    fn a_loss_that_a_timed_out_heartbeat_met_first_is_noticed() {
        let mut origin = Origin::default();
        let mut witness = Witness::default();
        assert!(!witness.hear_incarnation(origin.beat(A, 1000).incarnation, false));
        assert!(!witness.hear_incarnation(origin.beat(A, 2000).incarnation, true));
        origin.clear();
        origin.beat(A, 3000);
        let beat = origin.beat(A, 4000);
        assert!(beat.was_known, "the origin knows the process");
        assert!(witness.hear_incarnation(beat.incarnation, true));
        assert!(!witness.hear_incarnation(origin.beat(A, 5000).incarnation, true), "once");
    }

    #[test]
    fn a_process_that_was_silent_has_lost_nothing() {
        let mut origin = Origin::default();
        let mut witness = Witness::default();
        witness.hear_incarnation(origin.beat(A, 1000).incarnation, false);
        let beat = origin.beat(A, 61_000);
        assert!(!beat.was_known && !witness.hear_incarnation(beat.incarnation, true));
    }

    #[test]
    fn a_restart_is_one_loss_in_whatever_order_it_is_noticed() {
        let known = || {
            let mut witness = Witness::default();
            assert!(!witness.hear_incarnation(1, false) && !witness.hear_run_ids(&ids(&["x"])));
            witness
        };
        let mut witness = known();
        assert!(witness.hear_incarnation(2, true) && !witness.hear_run_ids(&ids(&["y"])));
        let mut witness = known();
        assert!(witness.hear_run_ids(&ids(&["y"])) && !witness.hear_incarnation(2, true));
        // The next one counts again.
        assert!(!witness.hear_run_ids(&ids(&["y"])) && !witness.hear_incarnation(2, true));
        assert!(witness.hear_run_ids(&ids(&["z"])) && !witness.hear_incarnation(2, true), "with the data of before");
        assert!(witness.hear_incarnation(3, true), "which is lost later");
    }

    #[test]
    fn a_primary_that_is_new_in_a_cluster_is_noticed() {
        let mut witness = Witness::default();
        assert!(!witness.hear_run_ids(&ids(&["x", "y"])) && !witness.hear_run_ids(&ids(&["y"])));
        assert!(witness.hear_run_ids(&ids(&["y", "z"])));
    }

    #[test]
    fn a_call_before_the_first_heartbeat_may_have_been_lost() {
        assert!(Witness::default().hear_incarnation(1, true));
    }
}
