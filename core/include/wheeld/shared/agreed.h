/* Agreed: what two processes must understand alike beside the fields of layout.h: enumerations,
 * constants, and how words are put together.
 *
 * All of it goes into the fingerprint (geometry.h), by the lists at the end: name and value of each
 * constant, and what each packing function makes of a sample. tools/agreed.py looks for a constant
 * of a header that is neither in the list nor known to be one process's own.
 */
#ifndef WHEELD_AGREED_H
#define WHEELD_AGREED_H

#include "wheeld/shared/key_hash.h"
#include "wheeld/shared/ring.h"
#include "wheeld/shared/slot.h"

enum wh_stage {
    WH_STAGE_OPEN = 0,    /* linked, or not seen yet */
    /* periodic, armed: its last tick went to (worker, position); for its undo */
    WH_STAGE_TICKED,
    WH_STAGE_WAIT_TICK,   /* periodic, armed: a tick waits in that worker's backlog */
    WH_STAGE_WAIT_EXPIRE, /* fired: waits in that worker's backlog */
    WH_STAGE_WAIT_RETURN, /* over: the return waits in the owner's queue of returns */
    WH_STAGE_LENT,        /* the target reads it at (worker, position); then it is returned */
    WH_STAGE_EXPIRED,     /* final: EXPIRED to the owner at (worker, position) */
    WH_STAGE_RETURNED,    /* final: in the owner's return ring at (worker, position) */
    WH_STAGE_RECLAIMED,   /* final: its owner died */
    WH_STAGE_HANDED,      /* it was in a dead worker's hands; its slab's owner is to get it */
    WH_STAGE_OFFERED /* a group's: at (worker, position), or in that worker's hands */
};

/* How a worker leaves: what becomes of its timers. row.on_death is one less. */
enum wh_leave {
    WH_STAYS = 0,
    WH_LEAVE_DROP, /* they are dropped */
    WH_LEAVE_KEEP, /* they wait for a successor, which takes over its row */
    WH_LEAVE_REROUTE /* living members of its groups take them over */
};

enum wh_row_state { WH_ROW_FREE = 0, WH_ROW_ATTACHING, WH_ROW_ACTIVE, WH_ROW_DYING, WH_ROW_KEPT };

/* What the place of a shared word is: the low bits of its tag. */
enum wh_word_state {
    WH_WORD_EMPTY = 0, /* check and value are 0 */
    WH_WORD_LIVE, /* a key's; of each key there is at most one */
    WH_WORD_COMING, /* who makes it has not seen yet that there is no other */
    WH_WORD_OVER, /* forgotten: it is emptied when nobody looks at it any more */
    WH_WORD_EMPTYING /* tag: row + 1 of who does that */
};
#define WH_WORD_STATE 7ull

enum wh_trace_kind {
    WH_TRACE_SCHEDULED = 1,
    WH_TRACE_RESCHEDULED,
    WH_TRACE_CANCELLED,
    WH_TRACE_EXPIRED,
    WH_TRACE_DROPPED,
    WH_TRACE_LOST
};

#define WH_TRACE_PERIODIC 4u /* in flags, above the clock kind */
#define WH_TRACE_FOUND 8u
#define WH_TRACED_TICK 0x80000000u /* in traced.version: the next tick is recorded already */
#define WH_VERSION_MASK 0xffffffu

#define WH_POOL_CHANGES ((1ull << WH_POOL_CHANGE_BITS) - 1)
#define WH_POOL_NOBODY 0xfffu
#define WH_REAPING_CHANGES ((1ull << 48) - 1) /* of the supervisor's own changes, in `reaping` */

/* -- words ------------------------------------------------------------------------------------- */

static inline uint64_t wh_owner_word(uint32_t worker, uint64_t incarnation)
{
    return incarnation << 16 | (worker + 1);
}

/* slot.target: a worker of that incarnation; a group by the name that its number has after `uses`
 * others. */
static inline uint32_t wh_target_word(uint32_t worker, uint64_t incarnation)
{
    return (uint32_t)(incarnation & 0xfffff) << 12 | (worker + 1);
}
static inline uint32_t wh_target_group(uint32_t group, uint32_t uses)
{
    return (uses & WH_USES_MASK) << 18 | group << 12 | WH_TARGET_GROUP;
}
static inline uint32_t wh_target_uses(uint32_t target) { return target >> 18; }

/* group.used, and its part. */
static inline uint32_t wh_group_word(uint32_t uses, bool named)
{
    return (uses & WH_USES_MASK) << 1 | (named ? 1 : 0);
}
static inline uint32_t wh_group_uses(uint32_t used) { return used >> 1 & WH_USES_MASK; }
static inline bool wh_group_named(uint32_t used) { return used & 1; }

/* worker.asked: the count of its asks, and for how many slots; `all`: so many or none. */
static inline uint64_t wh_ask_word(uint64_t asks, bool all, uint32_t slots)
{
    return (asks & 0xffffffffu) << 32 | (all ? WH_ASK_ALL : 0) | slots;
}
static inline uint32_t wh_ask_size(uint64_t asked) { return (uint32_t)asked & ~WH_ASK_ALL; }

static inline uint64_t wh_completion_word(enum wh_stage stage, uint32_t worker, uint64_t position)
{
    return (uint64_t)stage << 60 | (uint64_t)worker << WH_POS_BITS | (position & WH_POS_MASK);
}

/* pool.used: who made the last change, and which one of its own. */
static inline uint64_t wh_used_word(uint64_t bytes, uint32_t row, uint64_t change)
{
    return bytes << WH_POOL_BYTES_SHIFT | (uint64_t)row << WH_POOL_CHANGE_BITS |
           (change & WH_POOL_CHANGES);
}
static inline uint64_t wh_reaping_word(uint32_t row, uint64_t change)
{
    return change << 16 | (row + 1);
}

/* A note of a key in a watch row: of its hash what its mark needs. */
static inline uint64_t wh_note_of(uint64_t hash) { return hash << 1 | 1; }
static inline uint64_t wh_note_hash(uint64_t note) { return note >> 1; }

/* tag of a shared word, and its part. */
static inline uint64_t wh_word_tag(uint64_t hash, enum wh_word_state state)
{
    return (hash & ~WH_WORD_STATE) | (uint64_t)state;
}
static inline uint64_t wh_word_state(uint64_t tag) { return tag & WH_WORD_STATE; }

/* The two sets in one of which the word of a key is. */
static inline uint32_t wh_word_set_of(uint64_t hash)
{
    return (uint32_t)(hash >> (64 - WH_WORD_SET_BITS));
}

/* -- the lists --------------------------------------------------------------------------------- */

/* clang-format off */
#define WH_AGREED(K)                                                                               \
    K(WH_LAYOUT_VERSION) K(WH_MAGIC) K(WH_LINE) K(WH_SLAB_BITS) K(WH_SLAB_SLOTS) K(WH_SLOT_BITS)   \
    K(WH_MAX_CAPACITY) K(WH_MAX_WORKERS) K(WH_MAX_WHEEL_BITS) K(WH_UNDO_ENTRIES) K(WH_GROUPS)      \
    K(WH_PARKED) K(WH_TAKING) K(WH_SPLIT) K(WH_ASK_ALL) K(WH_USES_MASK) K(WH_TARGET_GROUP)         \
    K(WH_NIL) K(WH_BUCKET_BITS) K(WH_BUCKETS) K(WH_MARK_WORDS) K(WH_SIZES) K(WH_POOLS)             \
    K(WH_POOL_CHANGE_BITS) K(WH_POOL_BYTES_SHIFT) K(WH_MAX_POOL_BYTES) K(WH_POOL_CHANGES)          \
    K(WH_POOL_NOBODY) K(WH_REAPING_CHANGES) K(WH_MIN_TRACE_BITS) K(WH_MAX_TRACE_BITS)              \
    K(WH_NO_ROW) K(WH_TRACE_KINDS) K(WH_TRACE_PERIODIC) K(WH_TRACE_FOUND) K(WH_TRACED_TICK)        \
    K(WH_VERSION_MASK) K(WH_POS_BITS) K(WH_POS_MASK) K(WH_CLOCK_KINDS) K(WH_KIND_SHIFT)            \
    K(WH_SLOT_MASK) K(WH_NOTES) K(WH_WORD_SET_BITS) K(WH_WORD_SETS) K(WH_WORD_PLACES)              \
    K(WH_WORD_EMPTY) K(WH_WORD_LIVE) K(WH_WORD_COMING) K(WH_WORD_OVER) K(WH_WORD_EMPTYING)         \
    K(WH_WORD_STATE)                                                                               \
    K(WH_KIND_WHEEL) K(WH_KIND_SLOTS) K(WH_KIND_REGISTRY) K(WH_KIND_WORKER) K(WH_KIND_WATCH)       \
    K(WH_KIND_POOLS) K(WH_KIND_TRACE)                                                              \
    K(WH_NEVER) K(WH_ARMED) K(WH_CANCELLED) K(WH_FIRED) K(WH_TAKEN) K(WH_DONE) K(WH_CLOSED)        \
    K(WH_CLOCK_BASE) K(WH_CLOCK_REALTIME) K(WH_CLOCK_BOOTTIME) K(WH_PRIVATE)                       \
    K(WH_OP_SCHEDULE) K(WH_OP_CANCEL) K(WH_OP_RESCHEDULE)                                          \
    K(WH_EV_EXPIRED) K(WH_EV_TICK) K(WH_EV_LENT) K(WH_EV_OFFER)                                    \
    K(WH_STAGE_OPEN) K(WH_STAGE_TICKED) K(WH_STAGE_WAIT_TICK) K(WH_STAGE_WAIT_EXPIRE)              \
    K(WH_STAGE_WAIT_RETURN) K(WH_STAGE_LENT) K(WH_STAGE_EXPIRED) K(WH_STAGE_RETURNED)              \
    K(WH_STAGE_RECLAIMED) K(WH_STAGE_HANDED) K(WH_STAGE_OFFERED)                                   \
    K(WH_STAYS) K(WH_LEAVE_DROP) K(WH_LEAVE_KEEP) K(WH_LEAVE_REROUTE)                              \
    K(WH_ROW_FREE) K(WH_ROW_ATTACHING) K(WH_ROW_ACTIVE) K(WH_ROW_DYING) K(WH_ROW_KEPT)             \
    K(WH_TRACE_SCHEDULED) K(WH_TRACE_RESCHEDULED) K(WH_TRACE_CANCELLED) K(WH_TRACE_EXPIRED)        \
    K(WH_TRACE_DROPPED) K(WH_TRACE_LOST)
/* clang-format on */

/* Samples with a bit in every part, so that each shift and mask shows. */
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
    W(wh_word_set_of(0xf23456789abcdef1ull))

#endif
