"""The list of defects, and the lookup of a name given by the user."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from hybridbench.defects.controls.arena_retention import DEFECT as ARENA_RETENTION
from hybridbench.defects.controls.cache_fill import DEFECT as CACHE_FILL
from hybridbench.defects.controls.copied_messages import DEFECT as COPIED_MESSAGES
from hybridbench.defects.controls.healthy_sawtooth import DEFECT as HEALTHY_SAWTOOTH
from hybridbench.defects.controls.load_ramp import DEFECT as LOAD_RAMP
from hybridbench.defects.controls.observer_growth import DEFECT as OBSERVER_GROWTH
from hybridbench.defects.controls.released_mappings import DEFECT as RELEASED_MAPPINGS
from hybridbench.defects.controls.slot_fill_log import DEFECT as SLOT_FILL_LOG
from hybridbench.defects.controls.state_row_copy import DEFECT as STATE_ROW_COPY
from hybridbench.defects.controls.sticky_burst import DEFECT as STICKY_BURST
from hybridbench.defects.defect import Defect
from hybridbench.defects.metal488_stale_resumed_state import DEFECT as STALE_RESUMED_STATE
from hybridbench.defects.mlxlm1701_state_row_view import DEFECT as STATE_ROW_VIEW
from hybridbench.defects.mutants import PREFIX as MUTANT
from hybridbench.defects.mutants import find_mutant
from hybridbench.defects.names import nearest_defect
from hybridbench.defects.omi6938_pinned_buffers import DEFECT as PINNED_RECEIVE_BUFFERS
from hybridbench.defects.pr0508_radix_lock_skip import DEFECT as RADIX_LOCK_SKIP
from hybridbench.defects.pr4977_retract_page_pad import DEFECT as RETRACT_PAGE_PAD
from hybridbench.defects.pr12224_overlap_late_token_double_free import (
    DEFECT as OVERLAP_LATE_TOKEN_DOUBLE_FREE,
)
from hybridbench.defects.pr13501_host_double_release import DEFECT as HOST_DOUBLE_RELEASE
from hybridbench.defects.pr20049_hicache_unpolled_acks import DEFECT as HICACHE_UNPOLLED_ACKS
from hybridbench.defects.pr20182_mamba_queued_abort import DEFECT as MAMBA_QUEUED_ABORT
from hybridbench.defects.pr21404_mamba_adder_reject import DEFECT as MAMBA_ADDER_REJECT
from hybridbench.defects.pr21404_running_state_freed import DEFECT as RUNNING_STATE_FREED
from hybridbench.defects.pr21624_hicache_view_retention import DEFECT as HICACHE_VIEW_RETENTION
from hybridbench.defects.pr22753_session_active_double_count import (
    DEFECT as SESSION_ACTIVE_DOUBLE_COUNT,
)
from hybridbench.defects.pr22790_session_abort_clobber import DEFECT as SESSION_ABORT_CLOBBER
from hybridbench.defects.pr22862_session_logit_reserve import DEFECT as SESSION_LOGIT_RESERVE
from hybridbench.defects.pr22862_session_retract_tail import DEFECT as SESSION_RETRACT_TAIL
from hybridbench.defects.pr22862_session_tail_unaligned_free import (
    DEFECT as SESSION_TAIL_UNALIGNED_FREE,
)
from hybridbench.defects.pr23496_session_close_mamba import DEFECT as SESSION_CLOSE_MAMBA
from hybridbench.defects.pr23496_session_held_blind_check import DEFECT as SESSION_HELD_BLIND_CHECK
from hybridbench.defects.pr23696_himamba_protected_delete import (
    DEFECT as HIMAMBA_PROTECTED_DELETE,
)
from hybridbench.defects.pr24244_mamba_map_undersized import DEFECT as MAMBA_MAP_UNDERSIZED
from hybridbench.defects.pr25770_lru_reference_cycle import DEFECT as LRU_REFERENCE_CYCLE
from hybridbench.defects.pr25770_lru_reference_cycle import (
    IN_MAMBA_LISTS,
    IN_SWA_LIST,
    IN_UNIFIED_LISTS,
)
from hybridbench.defects.pr26351_verify_without_commit import DEFECT as VERIFY_WITHOUT_COMMIT
from hybridbench.defects.pr26796_idle_sanity_walk import DEFECT as IDLE_SANITY_WALK
from hybridbench.defects.pr26941_track_buffer_dangling import (
    DEFECT as TRACK_BUFFER_DANGLING,
)
from hybridbench.defects.pr27024_deferred_close_orphan import DEFECT as DEFERRED_CLOSE_ORPHAN
from hybridbench.defects.pr27256_free_group_replay import DEFECT as FREE_GROUP_REPLAY
from hybridbench.defects.pr27256_half_migrated_allocator import DEFECT as HALF_MIGRATED_ALLOCATOR
from hybridbench.defects.pr27256_himamba_unmigrated_caller import (
    DEFECT as HIMAMBA_UNMIGRATED_CALLER,
)
from hybridbench.defects.pr27256_mamba_group_abandon import DEFECT as MAMBA_GROUP_ABANDON
from hybridbench.defects.pr27586_swa_stale_mapping import DEFECT as SWA_STALE_MAPPING
from hybridbench.defects.pr28380_rid_state_orphan import DEFECT as RID_STATE_ORPHAN
from hybridbench.defects.pr31369_tracked_length_lags import DEFECT as TRACKED_LENGTH_LAGS
from hybridbench.defects.pr31616_spec_tail_unrecorded import DEFECT as SPEC_TAIL_UNRECORDED
from hybridbench.defects.pr31648_whole_chain_lru_refresh import DEFECT as WHOLE_CHAIN_LRU_REFRESH
from hybridbench.defects.pr31833_flattened_snapshot import DEFECT as FLATTENED_SNAPSHOT
from hybridbench.defects.pr35936_ghost_request import DEFECT as GHOST_REQUEST
from hybridbench.defects.pr38454_evict_heap_rebuild import DEFECT as EVICT_HEAP_REBUILD
from hybridbench.defects.pr39830_host_state_misplaced import DEFECT as HOST_STATE_MISPLACED
from hybridbench.defects.slow_step import DEFECT as SLOW_STEP
from hybridbench.defects.vllm24264_unreleased_mappings import DEFECT as UNRELEASED_MAPPINGS
from hybridbench.defects.vllm34183_request_partial_cycle import DEFECT as REQUEST_PARTIAL_CYCLE
from hybridbench.defects.vllm43090_attention_hit_longer import DEFECT as ATTENTION_HIT_LONGER
from hybridbench.defects.vllm44490_undrained_recorder import DEFECT as UNDRAINED_RECORDER
from hybridbench.defects.vllm56524_states_not_cleared import DEFECT as STATES_NOT_CLEARED
from hybridbench.foundation.errors import ConfigError, UsageError
from hybridbench.foundation.units import parse_byte_rate

DEFECTS: tuple[Defect, ...] = (
    LRU_REFERENCE_CYCLE,
    IN_MAMBA_LISTS,
    IN_SWA_LIST,
    IN_UNIFIED_LISTS,
    MAMBA_ADDER_REJECT,
    RID_STATE_ORPHAN,
    GHOST_REQUEST,
    REQUEST_PARTIAL_CYCLE,
    UNDRAINED_RECORDER,
    MAMBA_MAP_UNDERSIZED,
    MAMBA_GROUP_ABANDON,
    FREE_GROUP_REPLAY,
    HALF_MIGRATED_ALLOCATOR,
    HIMAMBA_UNMIGRATED_CALLER,
    SWA_STALE_MAPPING,
    MAMBA_QUEUED_ABORT,
    RETRACT_PAGE_PAD,
    OVERLAP_LATE_TOKEN_DOUBLE_FREE,
    SPEC_TAIL_UNRECORDED,
    HOST_DOUBLE_RELEASE,
    HICACHE_VIEW_RETENTION,
    HICACHE_UNPOLLED_ACKS,
    HIMAMBA_PROTECTED_DELETE,
    RADIX_LOCK_SKIP,
    EVICT_HEAP_REBUILD,
    IDLE_SANITY_WALK,
    WHOLE_CHAIN_LRU_REFRESH,
    SESSION_CLOSE_MAMBA,
    TRACK_BUFFER_DANGLING,
    SESSION_HELD_BLIND_CHECK,
    SESSION_RETRACT_TAIL,
    SESSION_LOGIT_RESERVE,
    SESSION_TAIL_UNALIGNED_FREE,
    SESSION_ABORT_CLOBBER,
    SESSION_ACTIVE_DOUBLE_COUNT,
    DEFERRED_CLOSE_ORPHAN,
    STATE_ROW_VIEW,
    UNRELEASED_MAPPINGS,
    PINNED_RECEIVE_BUFFERS,
    # In these every pool balances, and only the tokens are wrong.
    RUNNING_STATE_FREED,
    STATES_NOT_CLEARED,
    TRACKED_LENGTH_LAGS,
    VERIFY_WITHOUT_COMMIT,
    HOST_STATE_MISPLACED,
    FLATTENED_SNAPSHOT,
    STALE_RESUMED_STATE,
    ATTENTION_HIT_LONGER,
)

# Healthy behaviour that looks like a leak; injected like a defect, and must not be reported.
CONTROLS: tuple[Defect, ...] = (
    CACHE_FILL,
    HEALTHY_SAWTOOTH,
    ARENA_RETENTION,
    SLOT_FILL_LOG,
    LOAD_RAMP,
    OBSERVER_GROWTH,
    STICKY_BURST,
    STATE_ROW_COPY,
    RELEASED_MAPPINGS,
    COPIED_MESSAGES,
)

# Injected costs for testing comparisons; a soak cannot see them, as nothing changes over time.
# Not in the self-test.
PLANTED: tuple[Defect, ...] = (SLOW_STEP,)


def find_defect(name: str, asked_by: str = "--defect") -> Defect:
    """The defect ``name``: a slug, ``SLUG@RATE``, a mutant, or a ``.py`` file that defines
    ``DEFECT``.

    ``asked_by`` is the option or command that an error names.

    Raises:
        UsageError: the slug is unknown (names the nearest), or the rate invalid or not supported.
        ConfigError: the file is missing, does not import, or defines no ``DEFECT``.
    """
    if name.endswith(".py"):
        return _from_file(Path(name), asked_by)
    if name.startswith(MUTANT):
        return find_mutant(name)
    slug, at, rate = name.partition("@")
    known = (*DEFECTS, *CONTROLS, *PLANTED)
    for defect in known:
        if defect.slug == slug:
            return _at_rate(defect, rate, asked_by) if at else defect
    hint = nearest_defect(name, {defect.slug: defect.source for defect in known})
    raise UsageError(
        f"{name}: no such defect; {hint} A .py file with DEFECT works too.",
        option=asked_by,
    )


def _at_rate(defect: Defect, rate: str, asked_by: str) -> Defect:
    asked = f"{defect.slug}@{rate}"
    if defect.at_rate is None:
        having = ", ".join(known.slug for known in DEFECTS if known.at_rate is not None)
        raise UsageError(
            f"{asked}: {defect.slug} has no rate to choose; {having} have one.", option=asked_by
        )
    try:
        bytes_per_hour = parse_byte_rate(rate)
    except ValueError as error:
        raise UsageError(f"{asked}: {error}.", option=asked_by) from error
    if bytes_per_hour <= 0:
        raise UsageError(
            f"{asked}: the rate is zero; leave --defect out for a healthy engine.", option=asked_by
        )
    return replace(defect.at_rate(bytes_per_hour), slug=f"{defect.slug}@{''.join(rate.split())}")


def _from_file(path: Path, asked_by: str) -> Defect:
    if not path.is_file():
        raise ConfigError(f"{asked_by} {path}: no such file.")
    spec = importlib.util.spec_from_file_location(f"hybridbench_defect_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes defined in the file must be importable by name, for dataclasses and pickles.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{asked_by} {path}: does not import: {error!r}.") from error
    defect = vars(module).get("DEFECT")
    if not isinstance(defect, Defect):
        raise ConfigError(f"{asked_by} {path}: the file must define DEFECT = Defect(...).")
    return defect
