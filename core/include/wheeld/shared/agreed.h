/* Agreed: what two processes must understand alike beside the fields of layout.h and the parts of
 * words (packing.h): constants, enumerations, and what each function makes of a word.
 *
 * All of it goes into the fingerprint (geometry.h): name and value of each constant, and the result
 * for a sample. tools/agreed.py looks for a constant of a header that is neither in the list nor
 * known to be one process's own. */
#ifndef WHEELD_AGREED_H
#define WHEELD_AGREED_H

#include "wheeld/shared/layout.h"
#include "wheeld/shared/key_hash.h"
#include "wheeld/shared/geometry.h"
#include "wheeld/shared/slot.h"

#define WH_TRACE_PERIODIC 4u /* in flags, above the kind of clock */
#define WH_TRACE_FOUND 8u

/* The two sets that the word of a key may be in. */
static inline uint32_t wh_word_set_of(uint64_t hash)
{
    return (uint32_t)(hash >> (64 - WH_WORD_SET_BITS));
}

/* clang-format off */
#define WH_AGREED(K)                                                                               \
    K(WH_LAYOUT_VERSION) K(WH_MAGIC) K(WH_LINE) K(WH_SLAB_BITS) K(WH_SLAB_SLOTS)                   \
    K(WH_MAX_CAPACITY) K(WH_MAX_WORKERS) K(WH_MAX_WHEEL_BITS) K(WH_UNDO_ENTRIES) K(WH_GROUPS)      \
    K(WH_PARKED) K(WH_TAKING) K(WH_SPLIT) K(WH_ASK_ALL) K(WH_TARGET_GROUP) K(WH_NIL)               \
    K(WH_BUCKET_BITS) K(WH_BUCKETS) K(WH_MARK_WORDS) K(WH_SIZES) K(WH_POOLS) K(WH_MAX_POOL_BYTES)  \
    K(WH_POOL_NOBODY) K(WH_MIN_TRACE_BITS) K(WH_MAX_TRACE_BITS) K(WH_NO_ROW) K(WH_TRACE_KINDS)     \
    K(WH_TRACE_PERIODIC) K(WH_TRACE_FOUND) K(WH_TRACED_TICK) K(WH_VERSION_MASK)                    \
    K(WH_CLOCK_KINDS) K(WH_NOTES) K(WH_WORD_SET_BITS) K(WH_WORD_SETS) K(WH_WORD_PLACES)            \
    K(WH_WORD_EMPTY) K(WH_WORD_LIVE) K(WH_WORD_COMING) K(WH_WORD_OVER) K(WH_WORD_EMPTYING)         \
    K(WH_KIND_WHEEL) K(WH_KIND_SLOTS) K(WH_KIND_REGISTRY) K(WH_KIND_WORKER) K(WH_KIND_WATCH)       \
    K(WH_KIND_POOLS) K(WH_KIND_TRACE) K(WH_NEVER) K(WH_ARMED) K(WH_CANCELLED) K(WH_FIRED)          \
    K(WH_TAKEN) K(WH_DONE) K(WH_CLOSED) K(WH_CLOCK_BASE) K(WH_CLOCK_REALTIME)                      \
    K(WH_CLOCK_BOOTTIME) K(WH_PRIVATE) K(WH_OP_SCHEDULE) K(WH_OP_CANCEL) K(WH_OP_RESCHEDULE)       \
    K(WH_EV_EXPIRED) K(WH_EV_TICK) K(WH_EV_LENT) K(WH_EV_OFFER) K(WH_STAGE_OPEN)                   \
    K(WH_STAGE_TICKED) K(WH_STAGE_WAIT_TICK) K(WH_STAGE_WAIT_EXPIRE) K(WH_STAGE_WAIT_RETURN)       \
    K(WH_STAGE_LENT) K(WH_STAGE_EXPIRED) K(WH_STAGE_RETURNED) K(WH_STAGE_RECLAIMED)                \
    K(WH_STAGE_HANDED) K(WH_STAGE_OFFERED) K(WH_STAYS) K(WH_LEAVE_DROP) K(WH_LEAVE_KEEP)           \
    K(WH_LEAVE_REROUTE) K(WH_ROW_FREE) K(WH_ROW_ATTACHING) K(WH_ROW_ACTIVE) K(WH_ROW_DYING)        \
    K(WH_ROW_KEPT) K(WH_TRACE_SCHEDULED) K(WH_TRACE_RESCHEDULED) K(WH_TRACE_CANCELLED)             \
    K(WH_TRACE_EXPIRED) K(WH_TRACE_DROPPED) K(WH_TRACE_LOST) K(WH_HISTOGRAM_BITS)                  \
    K(WH_HISTOGRAM_TOP) K(WH_HISTOGRAM_BUCKETS) K(WH_COUNTS_LATENESS) K(WH_COUNTS_PASS)            \
    K(WH_COUNTS_FIRED) K(WH_COUNTS_DRAINED) K(WH_COUNTS_OVERSLEPT) K(WH_COUNTS_OF_ROWS)            \
    K(WH_COUNTS_TO_FIRE) K(WH_COUNTS_TO_POLL) K(WH_COUNTS_OF_WORKER)
/* clang-format on */

/* Samples with a bit set in every part, so that each shift and mask matters. */
#define WH_AGREED_WORDS(W)                                                                         \
    W(wh_id(0x9abcdef1u, 0x12345678u))                                                             \
    W(wh_id_gen(0x123456789abcdef1ull))                                                            \
    W(wh_id_slot(0x123456789abcdef1ull))                                                           \
    W(wh_id_kind(0x12345678babcdef1ull))                                                           \
    W(wh_id_with(0x1234567812345678ull, 3))                                                        \
    W(wh_state(0x9abcdef1u, 0x5au))                                                                \
    W(wh_state_gen(0x123456789abcdef1ull))                                                         \
    W(wh_state_phase(0x123456789abcdef1ull))                                                       \
    W(wh_state_touch(0x12345678ffffff5aull))                                                       \
    W(wh_state_to(0x12345678ffffff5aull, 0x21u))                                                   \
    W(wh_taker(0x123456789abcdef1ull))                                                             \
    W(wh_state_taker(0x123456789abcdef1ull))                                                       \
    W(wh_state_of(0x9abcdef1u, 0xbcdef1u, 0x5au))                                                  \
    W(wh_next_gen(0xffffffffu))                                                                    \
    W(wh_owner_word(0x123u, 0x123456789abull))                                                     \
    W(wh_owner_name(0xf23456789abcdef1ull))                                                        \
    W(wh_holder_word(0x9bcu, 0xfedcba9876543210ull))                                               \
    W(wh_holder_row(0x9abcdef1u))                                                                  \
    W(wh_ask_word(0xfedcba98u, true, 0x12345678u))                                                 \
    W(wh_ask_size(0x1234567892345678ull))                                                          \
    W(wh_target_word(0x123u, 0x123456789abull))                                                    \
    W(wh_target_group(0x2bu, 0xfedcu))                                                             \
    W(wh_target_uses(0x9abcdef1u))                                                                 \
    W(wh_target_number(0x9abcdef1u))                                                               \
    W(wh_owner_row(0x123456789abcdef1ull))                                                         \
    W(wh_taker_row(0x9abcdef1u))                                                                   \
    W(wh_reaping_row(0x123456789abcdef1ull))                                                       \
    W(wh_word_emptying(0x9bcu))                                                                    \
    W(wh_made_word(0x123456789abull, 0xfedcu))                                                     \
    W(wh_group_word(0xfedcu, true))                                                                \
    W(wh_group_uses(0x12345679u))                                                                  \
    W(wh_group_named(0x12345679u))                                                                 \
    W(wh_completion_word(WH_STAGE_RETURNED, 0x9bcu, 0xfedcba9876543210ull))                        \
    W(wh_pos_before(0x7fffffffffffull, 0xfffffffffffeull))                                         \
    W(wh_used_word(0x123456789ull, 0x9bcu, 0xfedcba9876543210ull))                                 \
    W(wh_reaping_word(0x9bcu, 0x123456789abull))                                                   \
    W(wh_hash_piece(0x123456789abcdef1ull, 's', "eleven byte", 11))                                \
    W(wh_hash_bucket(0x123456789abcdef1ull))                                                       \
    W(wh_hash_mark_word(0x123456789abcdef1ull))                                                    \
    W(wh_hash_mark(0x123456789abcdef1ull))                                                         \
    W(wh_bucket_marks(0xdef1u))                                                                    \
    W(wh_note_of(0x123456789abcdef1ull))                                                           \
    W(wh_word_tag(0x123456789abcdef7ull, WH_WORD_OVER))                                            \
    W(wh_word_state(0x123456789abcdef5ull))                                                        \
    W(wh_word_set_of(0xf23456789abcdef1ull))                                                       \
    W(wh_histogram_bucket(0x123456789abull))

#endif
