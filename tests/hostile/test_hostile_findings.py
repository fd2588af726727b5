"""The sixteen findings of the attack on certificates, sources, networks and inputs, each with the tests that guard it.

A test of a name that is gone guards nothing, so the names are looked up. Each was seen to fail with its fix taken out.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES, CERTIFICATES, NETWORK, LIMITS = "sources", "certificates", "network", "limits"
FINDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "H1 --sources limited what was typed, not what was opened": (
        (SOURCES, "test_a_path_option_of_a_verb_opens_only_what_is_inside"),  # spaces, slashes, dots, links
        (SOURCES, "test_a_value_of_the_page_is_refused_before_it_is_parsed"),  # lists and prefixes
        (SOURCES, "test_no_row_of_a_table_names_a_recording_outside"),
        (SOURCES, "test_a_table_of_the_workspace_is_foreign_without_sources_too"),
        (SOURCES, "test_a_link_exchanged_while_the_job_waits_is_refused"),
        (SOURCES, "test_a_job_that_was_written_by_others_does_not_begin"),  # an imported run that is resumed
    ),
    "H2 a certificate was believed, not computed": (
        (CERTIFICATES, "test_forged_error_rates_of_a_packed_run_are_computed_again_elsewhere"),
        (CERTIFICATES, "test_an_export_of_a_packed_run_does_not_take_its_forged_rates"),
        (CERTIFICATES, "test_a_forged_certificate_in_the_cache_is_not_used"),
        (CERTIFICATES, "test_a_frozen_hash_of_zeros_fails_whatever_certificate_lies_there"),
        ("caches", "test_forged_scores_of_sentences_are_computed_again"),
    ),
    "H3 page and push showed green for other weights": (
        (CERTIFICATES, "test_a_flipped_bit_of_an_export"),
        (CERTIFICATES, "test_a_deleted_file_of_an_export"),
        (CERTIFICATES, "test_made_weights_are_other_files"),  # noise, zeros, other codecs, random rows
        (CERTIFICATES, "test_a_certificate_of_another_subject_is_of_other_files"),
        (CERTIFICATES, "test_a_certificate_with_parts_removed_is_incomplete"),
        (CERTIFICATES, "test_changed_weights_are_not_uploaded"),
    ),
    "M1 passwords of source addresses stayed": (
        (LIMITS, "test_a_password_of_an_address_is_in_the_job_alone"),
        (LIMITS, "test_passwords_in_a_cache_of_before_are_taken_out"),
    ),
    "M2 YAML merge keys": ((LIMITS, "test_yaml_that_multiplies_is_refused_at_once"),),
    "M3 rebinding with NO_PROXY": (
        (NETWORK, "test_a_name_that_leads_elsewhere_at_the_connection_is_not_asked"),
        (NETWORK, "test_a_connection_goes_to_the_address_that_was_checked"),
    ),
    "M4 a stranger kept the owner from signing in": (
        (NETWORK, "test_the_right_password_is_let_in_while_strangers_fail_at_the_same_address"),
    ),
    "M5 addresses of credentials": (
        (NETWORK, "test_addresses_at_which_clouds_hand_out_credentials_are_refused_in_any_case"),
        (NETWORK, "test_addresses_that_lead_into_the_network_are_refused_where_sources_are_limited"),
        (NETWORK, "test_a_hub_that_redirects_a_file_to_credentials_is_not_followed"),
    ),
    "M6 a file system without flock": (
        (LIMITS, "test_a_disk_without_locks_is_named"), (LIMITS, "test_a_disk_that_cannot_sync_is_not_called_full"),
    ),
    "L1 a damaged export was packed": ((LIMITS, "test_a_damaged_export_is_not_packed"),),
    "L2 a killed export left files": (
        (LIMITS, "test_what_a_killed_process_left_of_an_export_is_removed_and_what_a_living_one_writes_is_not"),
    ),
    "L3 a certificate of 100,000 checks": ((LIMITS, "test_a_certificate_of_thousands_of_rows_is_refused"),),
    "L4 quadratic text functions": (
        (LIMITS, "test_twice_the_text_takes_twice_the_time"), (LIMITS, "test_a_megabyte_takes_seconds"),
    ),
    "L5 a kill for memory was not named": (
        (LIMITS, "test_a_worker_that_was_killed_for_memory_says_so"),
        (LIMITS, "test_processes_killed_for_memory_are_counted"),
    ),
    "L6 X-Forwarded-For chose the address": (
        (NETWORK, "test_a_header_does_not_choose_the_address_that_failures_are_counted_for"),
    ),
    "L7 formulas behind a semicolon": (
        (LIMITS, "test_no_cell_is_a_formula_for_a_spreadsheet_with_another_separator"),
    ),
}


def test_there_are_sixteen_findings() -> None:
    assert len(FINDINGS) == 16


@pytest.mark.parametrize("finding", FINDINGS)
def test_each_finding_has_its_tests(finding: str) -> None:
    for module, name in FINDINGS[finding]:
        tree = ast.parse((HERE / f"test_hostile_{module}.py").read_text(encoding="utf-8"))
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
