"""Tests of this folder that fail today, by name, with the letter of the defect in part 5 of issue 8.

A test on this list is expected to fail, so whoever mends the defect removes its line.
"""

from __future__ import annotations

KNOWN_DEFECTS: dict[str, str] = {
    "test_damage_to_the_record_of_a_prepared_claim_never_undoes_it": "d",
    "test_the_device_of_a_claim_that_was_deallocated_is_free_after_a_grace": "e",
    "test_a_claim_that_the_kubelet_still_has_on_its_list_is_not_unprepared_when_it_is_gone_from_the_api": "e",
    "test_a_slow_claim_of_the_old_instance_keeps_no_claim_of_the_new_one_waiting": "f",
    "test_claims_are_prepared_after_the_plugins_directory_was_wiped_under_the_agent": "h",
    "test_a_call_that_blocked_the_backend_is_told_as_that_with_the_place": "j",
    "test_a_claim_that_is_refused_before_the_backend_ran_is_not_unprepared": "k",
    "test_admin_access_that_is_refused_leaves_the_device_of_the_claim_that_holds_it_alone": "k",
    "test_a_claim_in_quarantine_is_refused_without_being_unprepared_each_time": "k",
    "test_after_a_reboot_unprepare_gives_the_backend_nothing_of_the_old_boots_state": "n",
    "test_an_instance_that_is_told_to_stop_publishes_no_more_beside_its_successor": "n",
    "test_a_device_that_the_driver_never_published_is_refused_without_the_backend": "p",
}
