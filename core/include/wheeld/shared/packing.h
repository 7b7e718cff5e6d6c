/* Packing: what the bits of shared words mean. Each part of a word is declared once, below.
 *
 * The shifts and masks of these functions, of the numpy side (wheeld_core/packing.py), the table in
 * shm_layout.md and the words' part of the fingerprint all derive from the list.
 *
 *   P(word, part, first bit, bits, meaning)
 *
 * Invariant: parts of a word that overlap are alternatives, and another part says which counts.
 */
#ifndef WHEELD_PACKING_H
#define WHEELD_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "wheeld/shared/states.h"

/* clang-format off */
#define WH_PACKED(P)                                                                               \
    P(ID, GEN, 32, 32, "generation of the slot, from 1 on")                                        \
    P(ID, KIND, 30, 2, "in a ring: 0 EXPIRED, 1 TICK, 2 LENT, 3 OFFER")                            \
    P(ID, SLOT, 0, 30, "its index")                                                                \
    P(STATE, GEN, 32, 32, "generation")                                                            \
    P(STATE, TAKER, 8, 24, "once offered: the taker")                                              \
    P(STATE, MOVED, 31, 1, "1: moved since its last tick, so its next one is at the deadline")     \
    P(STATE, EARLY, 30, 1, "1: moved to earlier: from then on each move is submitted")             \
    P(STATE, PAUSED, 29, 1, "1: paused, if its deadline is in the second half of time")            \
    P(STATE, VERSION, 8, 21, "changes since it was armed")                                         \
    P(STATE, PHASE, 0, 8, "0 never armed, 1 ARMED, 2 CANCELLED, 3 FIRED, 4 TAKEN, 5 DONE")         \
    P(TAKER, INCARNATION, 12, 12, "low bits of the incarnation of who took an offer")              \
    P(TAKER, WORKER, 0, 12, "its row + 1")                                                         \
    P(OWNER, PARKED, 63, 1, "1: its owner has nothing of the slab in hand")                        \
    P(OWNER, TAKING, 62, 1, "1: the clock looked at it since it was parked")                       \
    P(OWNER, INCARNATION, 16, 46, "incarnation of the owner")                                      \
    P(OWNER, WORKER, 0, 16, "its row + 1; 0: nobody; 0xffff: each slot has a holder of its own")   \
    P(HOLDER, POSITION, 12, 20, "low bits of where in its return ring it got the slot")            \
    P(HOLDER, WORKER, 0, 12, "row + 1 of the holder; 0: the clock; 0xfff: nobody, until it was read")                                \
    P(TARGET, INCARNATION, 12, 20, "for a worker: low bits of its incarnation")                    \
    P(TARGET, USES, 18, 14, "for a group: `uses` of its number")                                   \
    P(TARGET, GROUP, 12, 6, "for a group: its number")                                             \
    P(TARGET, WORKER, 0, 12, "row + 1; 0xfff: for a group; all bits 0: for the owner")             \
    P(GROUP, USES, 1, 14, "names that the number had before")                                      \
    P(GROUP, NAMED, 0, 1, "1: it has a name")                                                      \
    P(ASK, COUNT, 32, 32, "asks of this worker")                                                   \
    P(ASK, ALL, 31, 1, "1: so many slots or none")                                                 \
    P(ASK, SLOTS, 0, 31, "slots wanted")                                                           \
    P(COMPLETION, STAGE, 60, 4, "stage of the clock's record")                                     \
    P(COMPLETION, WORKER, 48, 12, "row of the ring that the record is about")                      \
    P(COMPLETION, POSITION, 0, 48, "low bits of the position there")                               \
    P(USED, BYTES, 26, 38, "bytes out: `size` and one request more")                               \
    P(USED, ROW, 14, 12, "ledger that made the last change; 0xfff: none")                          \
    P(USED, CHANGE, 0, 14, "low bits of which one of its changes that was")                        \
    P(REAPING, CHANGE, 16, 48, "low bits of the supervisor's change that returns them")            \
    P(REAPING, ROW, 0, 16, "ledger + 1 of the dead worker; all bits 0: none")                      \
    P(NOTE, HASH, 1, 63, "of the key's hash what its mark needs")                                  \
    P(NOTE, SET, 0, 1, "1")                                                                        \
    P(TAG, HASH, 3, 61, "high bits of the key's hash; EMPTYING: row + 1 of who does that")         \
    P(TAG, STATE, 0, 3, "0 EMPTY, 1 LIVE, 2 COMING, 3 OVER, 4 EMPTYING, 5 TIMER, 6 LIMIT, 7 LEASE") \
    P(LIMIT, ENDS, 4, 60, "ns of the base clock at which it is over")                              \
    P(LIMIT, LAP, 0, 4, "of a place in a log: low bits of the lap in which it was taken")          \
    P(LEASE, ENDS, 26, 38, "2**20 ns of the base clock at which it is over")                       \
    P(LEASE, TENANT, 13, 13, "low bits of half the `tenancy` of who has it")                       \
    P(LEASE, ROW, 1, 12, "row + 1 of who has it; all bits 0: nobody")                              \
    P(LEASE, GRANTED, 0, 1, "1: it is that worker's turn to take it")                              \
    P(TICKET, NUMBER, 10, 54, "ticket: the lowest comes first")                                    \
    P(TICKET, SEATS, 0, 10, "seats that it looks at, less 1")                                      \
    P(TALLY, COUNT, 0, 22, "taken in the window")                                                  \
    P(LOG, ERA, 20, 8, "times that it was cleared")                                                \
    P(LOG, LAP, 16, 4, "low bits of its laps")                                                     \
    P(LOG, POSITION, 0, 16, "of the place that is taken next")                                     \
    P(BLOCK, SET, 31, 1, "1: there is one")                                                        \
    P(BLOCK, CHUNK, 9, 22, "the chunk it is in")                                                   \
    P(BLOCK, INDEX, 0, 9, "which of the chunk's blocks")                                           \
    P(CHUNK, HELD, 31, 1, "1: its worker takes a block just now")                                  \
    P(CHUNK, WORKER, 8, 12, "row + 1 of the worker that used it last; 0: none")                    \
    P(CHUNK, CLASS, 0, 8, "1 + the class of its blocks, by size; 0: it has none yet")              \
    P(MADE, TENANT, 16, 48, "low bits of the worker's incarnation")                                \
    P(MADE, NUMBER, 1, 15, "low bits of how many lines it had opened")                             \
    P(MADE, OPEN, 0, 1, "1: a purgatory's; all bits 0: nobody's")                                  \
    P(FLAGS, MOVES, 6, 10, "counts a periodic timer's grids, a one-shot's deliveries after the first; from the low bits of GEN on")  \
    P(FLAGS, HELD, 5, 1, "1: its key stays taken until its end is acknowledged")                   \
    P(FLAGS, DETACHED, 4, 1, "1: it stays when its owner goes, and waits for its receiver")        \
    P(FLAGS, KEYED, 3, 1, "1: it has a key, and fires only while the key's word names it")         \
    P(FLAGS, PRIVATE, 2, 1, "1: what it is for is in its owner's process alone; of a detached one: its end waits for ever")      \
    P(FLAGS, CLOCK, 0, 2, "0 base clock, 1 realtime, 2 boottime")                                  \
    P(TRACED, TICK, 31, 1, "1: the next tick is recorded already")                                 \
    P(INTERVAL, ONCE, 63, 1, "1: one-shot, scheduled at minus the word; all bits 0: unknown when") \
    P(INTERVAL, TENANT, 50, 13, "periodic: low bits of GEN")                                       \
    P(INTERVAL, UNIT, 48, 2, "periodic: the period counts 0 ns, 1 us, 2 ms")                       \
    P(INTERVAL, COUNT, 0, 48, "periodic: the period, in this unit")                                \
    P(TRACED, VERSION, 0, 21, "up to which version of the state changes are recorded")
/* clang-format on */

#define WH_DECLARE_PART(word, part, at, bits, ...)                                                 \
    WH_##word##_##part##_AT = at, WH_##word##_##part##_BITS = bits,
enum wh_packed { WH_PACKED(WH_DECLARE_PART) };

/* The largest value of a part; its mask in the word; its value in a word; a value that fits,
 * shifted into place; the low bits of one that may not fit, likewise. */
#define WH_MOST(part) (~0ull >> (64 - WH_##part##_BITS))
#define WH_MASK(part) (WH_MOST(part) << WH_##part##_AT)
#define WH_GET(part, word) ((uint64_t)(word) >> WH_##part##_AT & WH_MOST(part))
#define WH_PUT(part, value) ((uint64_t)(value) << WH_##part##_AT)
#define WH_PUT_LOW(part, value) WH_PUT(part, (value) & WH_MOST(part))

#define WH_PARKED WH_MASK(OWNER_PARKED)
#define WH_TAKING WH_MASK(OWNER_TAKING)
#define WH_SPLIT 0xffffull     /* in place of an owner's row + 1 */
#define WH_HOLDER_NOBODY 0xfffu /* a HOLDER word: on loan, and its owner is gone */
#define WH_TARGET_GROUP 0xfffu /* in place of a target's row + 1 */
#define WH_ASK_ALL WH_MASK(ASK_ALL)
#define WH_CLOSED 0xffffffu /* FIRED, in place of a taker: no offer, its receiver keeps it */
#define WH_PRIVATE ((uint16_t)WH_MASK(FLAGS_PRIVATE))
#define WH_KEYED ((uint16_t)WH_MASK(FLAGS_KEYED))
#define WH_DETACHED ((uint16_t)WH_MASK(FLAGS_DETACHED))
#define WH_LASTING ((uint16_t)(WH_DETACHED | WH_PRIVATE)) /* detached, and its end waits for ever */
#define WH_HELD ((uint16_t)WH_MASK(FLAGS_HELD))
#define WH_TRACED_TICK ((uint32_t)WH_MASK(TRACED_TICK))
#define WH_VERSION_MASK ((uint32_t)WH_MOST(STATE_VERSION))
#define WH_POOL_NOBODY WH_MOST(USED_ROW)

/* -- a timer ----------------------------------------------------------------------------------- */

static inline uint64_t wh_id(uint32_t gen, uint32_t slot) { return WH_PUT(ID_GEN, gen) | slot; }
static inline uint32_t wh_id_gen(uint64_t id) { return (uint32_t)WH_GET(ID_GEN, id); }
static inline uint32_t wh_id_slot(uint64_t id) { return (uint32_t)WH_GET(ID_SLOT, id); }
/* The slot of an id that a user gave; beyond every capacity if there is a kind in it, as no id has
 * that goes to users. */
static inline uint64_t wh_id_given_slot(uint64_t id) { return id & ~WH_MASK(ID_GEN); }
static inline uint32_t wh_id_kind(uint64_t id) { return (uint32_t)WH_GET(ID_KIND, id); }
static inline uint64_t wh_id_with(uint64_t id, uint32_t kind) { return id | WH_PUT(ID_KIND, kind); }

static inline uint32_t wh_state_gen(uint64_t s) { return (uint32_t)WH_GET(STATE_GEN, s); }
static inline uint32_t wh_state_version(uint64_t s) { return (uint32_t)WH_GET(STATE_VERSION, s); }
static inline uint32_t wh_state_taker(uint64_t s) { return (uint32_t)WH_GET(STATE_TAKER, s); }
static inline bool wh_state_is_moved(uint64_t s) { return WH_GET(STATE_MOVED, s) != 0; }
static inline uint32_t wh_state_phase(uint64_t s) { return (uint32_t)WH_GET(STATE_PHASE, s); }
static inline uint64_t wh_state(uint32_t gen, uint32_t phase)
{
    return WH_PUT(STATE_GEN, gen) | phase;
}
static inline uint64_t wh_state_of(uint32_t gen, uint32_t taker, uint32_t phase)
{
    return wh_state(gen, phase) | WH_PUT(STATE_TAKER, taker);
}
static inline uint64_t wh_state_to(uint64_t s, uint32_t phase)
{
    return (s & ~WH_MASK(STATE_PHASE)) | phase;
}
/* The same generation and phase, one version on. */
static inline uint64_t wh_state_touch(uint64_t s)
{
    uint64_t version = WH_MASK(STATE_VERSION);
    return (s & ~version) | ((s + WH_PUT(STATE_VERSION, 1)) & version);
}
static inline bool wh_state_is_early(uint64_t s) { return WH_GET(STATE_EARLY, s) != 0; }
static inline bool wh_state_is_paused(uint64_t s) { return WH_GET(STATE_PAUSED, s) != 0; }
static inline uint64_t wh_state_moved(uint64_t s)
{
    return (wh_state_touch(s) & ~WH_MASK(STATE_PAUSED)) | WH_MASK(STATE_MOVED);
}
static inline uint64_t wh_state_paused(uint64_t s) { return s | WH_MASK(STATE_PAUSED); }
static inline uint64_t wh_state_early(uint64_t s) { return s | WH_MASK(STATE_EARLY); }
static inline uint64_t wh_state_ticked(uint64_t s)
{
    return wh_state_touch(s) & ~WH_MASK(STATE_MOVED);
}
static inline uint32_t wh_next_gen(uint32_t gen) { return gen + 1 ? gen + 1 : 1; }

static inline uint32_t wh_flags_clock(uint32_t flags)
{
    return (uint32_t)WH_GET(FLAGS_CLOCK, flags);
}
/* The flags of a timer of that generation, which differ from those of the slot's last tenants. */
static inline uint16_t wh_flags_armed(uint32_t flags, uint32_t gen)
{
    return (uint16_t)(flags | WH_PUT_LOW(FLAGS_MOVES, gen));
}
static inline uint16_t wh_flags_moved(uint32_t flags)
{
    return (uint16_t)((flags & ~WH_MASK(FLAGS_MOVES)) |
                      WH_PUT_LOW(FLAGS_MOVES, WH_GET(FLAGS_MOVES, flags) + 1));
}

/* How often a one-shot timer of that generation was delivered before, to members of its group. */
static inline uint32_t wh_attempts_before(uint32_t flags, uint32_t gen)
{
    return (uint32_t)((WH_GET(FLAGS_MOVES, flags) - gen) & WH_MOST(FLAGS_MOVES));
}

/* slot.interval of a periodic timer, which differs from those of the slot's last tenants. `ns` is
 * rounded up to whole microseconds from 78 hours on, to milliseconds from 8.9 years on. */
static inline int64_t wh_interval_word(int64_t ns, uint32_t gen)
{
    uint64_t count = (uint64_t)ns, unit = 0;
    for (; wh_unlikely(count > WH_MOST(INTERVAL_COUNT)); unit++)
        count = count / 1000 + (count % 1000 != 0);
    return (int64_t)(WH_PUT_LOW(INTERVAL_TENANT, gen) | WH_PUT(INTERVAL_UNIT, unit) | count);
}
/* The period, 0: one-shot. */
static inline int64_t wh_interval_ns(int64_t word)
{
    if (wh_likely(word <= 0))
        return 0;
    uint64_t ns = WH_GET(INTERVAL_COUNT, (uint64_t)word);
    for (uint64_t unit = WH_GET(INTERVAL_UNIT, (uint64_t)word); unit; unit--)
        ns = ns > INT64_MAX / 1000 ? INT64_MAX : ns * 1000;
    return (int64_t)ns;
}

/* -- whose it is ------------------------------------------------------------------------------- */

static inline uint64_t wh_owner_word(uint32_t worker, uint64_t incarnation)
{
    return WH_PUT(OWNER_INCARNATION, incarnation) | (worker + 1);
}
/* The worker that an owner word names, parked or not. */
static inline uint64_t wh_owner_name(uint64_t word) { return word & ~(WH_PARKED | WH_TAKING); }
static inline uint64_t wh_owner_worker(uint64_t word) { return WH_GET(OWNER_WORKER, word); }
static inline uint32_t wh_owner_row(uint64_t word) { return (uint32_t)wh_owner_worker(word) - 1; }
static inline uint64_t wh_owner_incarnation(uint64_t word)
{
    return WH_GET(OWNER_INCARNATION, word);
}

/* The worker that takes an offer, in the bits of the version: from the taker's owner word. */
static inline uint32_t wh_taker(uint64_t owner)
{
    return (uint32_t)(WH_PUT_LOW(TAKER_INCARNATION, wh_owner_incarnation(owner)) |
                      WH_PUT_LOW(TAKER_WORKER, owner));
}
static inline uint32_t wh_taker_row(uint32_t taker)
{
    return (uint32_t)WH_GET(TAKER_WORKER, taker) - 1;
}

/* The holder of a slot of a split slab, and where in its return ring it got the slot. A ring has
 * 2**17 entries at most, so no two entries that stand in it are mistaken for each other. */
static inline uint32_t wh_holder_word(uint32_t worker, uint64_t position)
{
    return (uint32_t)WH_PUT_LOW(HOLDER_POSITION, position) | (worker + 1);
}
static inline uint32_t wh_holder_row(uint32_t holder)
{
    return (uint32_t)WH_GET(HOLDER_WORKER, holder) - 1;
}
/* A position half the range away: no entry in the ring is about it. */
static inline uint64_t wh_holder_away(uint64_t position)
{
    return position + (1u << (WH_HOLDER_POSITION_BITS - 1));
}

/* slot.target: a worker of that incarnation; a group by the name that its number has after `uses`
 * others. */
static inline uint32_t wh_target_word(uint32_t worker, uint64_t incarnation)
{
    return (uint32_t)WH_PUT_LOW(TARGET_INCARNATION, incarnation) | (worker + 1);
}
static inline uint32_t wh_target_worker(uint32_t target)
{
    return (uint32_t)WH_GET(TARGET_WORKER, target);
}
static inline uint32_t wh_target_group(uint32_t group, uint32_t uses)
{
    return (uint32_t)(WH_PUT_LOW(TARGET_USES, uses) | WH_PUT(TARGET_GROUP, group)) |
           WH_TARGET_GROUP;
}
static inline uint32_t wh_target_uses(uint32_t target)
{
    return (uint32_t)WH_GET(TARGET_USES, target);
}
static inline uint32_t wh_target_number(uint32_t target)
{
    return (uint32_t)WH_GET(TARGET_GROUP, target);
}

/* group.used, and its parts. */
static inline uint32_t wh_group_word(uint32_t uses, bool named)
{
    return (uint32_t)WH_PUT_LOW(GROUP_USES, uses) | named;
}
static inline uint32_t wh_group_uses(uint32_t used) { return (uint32_t)WH_GET(GROUP_USES, used); }
static inline bool wh_group_named(uint32_t used) { return WH_GET(GROUP_NAMED, used) != 0; }

/* worker.asked: the count of its asks, and for how many slots; `all`: this many, or none. */
static inline uint64_t wh_ask_word(uint64_t asks, bool all, uint32_t slots)
{
    return WH_PUT(ASK_COUNT, asks) | WH_PUT(ASK_ALL, all) | slots;
}
static inline uint64_t wh_ask_count(uint64_t asked) { return WH_GET(ASK_COUNT, asked); }
static inline uint32_t wh_ask_size(uint64_t asked) { return (uint32_t)WH_GET(ASK_SLOTS, asked); }

/* link.completion and its parts. */
static inline uint64_t wh_completion_word(enum wh_stage stage, uint32_t worker, uint64_t position)
{
    return WH_PUT(COMPLETION_STAGE, stage) | WH_PUT(COMPLETION_WORKER, worker) |
           WH_PUT_LOW(COMPLETION_POSITION, position);
}
static inline enum wh_stage wh_completion_stage(uint64_t word)
{
    return (enum wh_stage)WH_GET(COMPLETION_STAGE, word);
}
static inline uint32_t wh_completion_worker(uint64_t word)
{
    return (uint32_t)WH_GET(COMPLETION_WORKER, word);
}
static inline uint64_t wh_completion_position(uint64_t word)
{
    return WH_GET(COMPLETION_POSITION, word);
}
/* Is a truncated position before a limit? They are compared within half their range. */
static inline bool wh_pos_before(uint64_t pos48, uint64_t limit)
{
    uint64_t distance = WH_GET(COMPLETION_POSITION, limit - pos48);
    return distance != 0 && distance < 1ull << (WH_COMPLETION_POSITION_BITS - 1);
}

/* -- what workers share ------------------------------------------------------------------------ */

/* pool.used: who made the last change, and its number. */
static inline uint64_t wh_used_word(uint64_t bytes, uint32_t row, uint64_t change)
{
    return WH_PUT(USED_BYTES, bytes) | WH_PUT(USED_ROW, row) | WH_PUT_LOW(USED_CHANGE, change);
}
static inline uint64_t wh_used_bytes(uint64_t word) { return WH_GET(USED_BYTES, word); }
static inline uint32_t wh_used_row(uint64_t word) { return (uint32_t)WH_GET(USED_ROW, word); }
/* By how many changes the one that a word names is ahead of one of the same ledger. */
static inline uint64_t wh_used_ahead(uint64_t word, uint64_t change)
{
    return WH_GET(USED_CHANGE, word - change);
}

static inline uint64_t wh_reaping_word(uint32_t row, uint64_t change)
{
    return WH_PUT(REAPING_CHANGE, change) | (row + 1);
}
static inline uint32_t wh_reaping_row(uint64_t word)
{
    return (uint32_t)WH_GET(REAPING_ROW, word) - 1;
}
static inline bool wh_reaping_names(uint64_t word, uint64_t change)
{
    return WH_GET(REAPING_CHANGE, word) == (change & WH_MOST(REAPING_CHANGE));
}

/* The note of a key in a watch row. */
static inline uint64_t wh_note_of(uint64_t hash)
{
    return WH_PUT(NOTE_HASH, hash) | WH_MASK(NOTE_SET);
}
static inline uint64_t wh_note_hash(uint64_t note) { return WH_GET(NOTE_HASH, note); }

/* tag of a shared word, and its part. */
static inline uint64_t wh_word_tag(uint64_t hash, enum wh_word_state state)
{
    return (hash & WH_MASK(TAG_HASH)) | (uint64_t)state;
}
static inline uint64_t wh_word_emptying(uint32_t row)
{
    return WH_PUT(TAG_HASH, row + 1ull) | WH_WORD_EMPTYING;
}
static inline uint64_t wh_word_state(uint64_t tag) { return WH_GET(TAG_STATE, tag); }

/* The word of a limit that is over at `ends` ns, or as little later as its low bits are wide. */
static inline uint64_t wh_limit_word(int64_t ends, uint64_t low, uint32_t bits)
{
    uint64_t word = WH_PUT(LIMIT_ENDS, ends), mask = (1ull << bits) - 1;
    return ((word + mask) & ~mask) | low;
}
static inline int64_t wh_limit_ends(uint64_t word) { return (int64_t)WH_GET(LIMIT_ENDS, word); }

/* The word of a lease's seat that is over at `ends` ns, or up to 2**20 ns later; and its parts. */
static inline uint64_t wh_lease_word(int64_t ends, uint32_t row, uint64_t tenancy, bool granted)
{
    uint64_t units = ((uint64_t)ends + (1u << 20) - 1) >> 20, most = WH_MOST(LEASE_ENDS);
    return WH_PUT(LEASE_ENDS, units < most ? units : most) |
           WH_PUT_LOW(LEASE_TENANT, tenancy >> 1) | WH_PUT(LEASE_ROW, row + 1) | granted;
}
static inline int64_t wh_lease_ends(uint64_t word)
{
    return (int64_t)(WH_GET(LEASE_ENDS, word) << 20);
}
static inline uint32_t wh_lease_row(uint64_t word) { return (uint32_t)WH_GET(LEASE_ROW, word) - 1; }
static inline bool wh_lease_is_granted(uint64_t word) { return WH_GET(LEASE_GRANTED, word) != 0; }
/* Does it name the worker that has this tenancy in its row? */
static inline bool wh_lease_names(uint64_t word, uint64_t tenancy)
{
    return tenancy & 1 && WH_GET(LEASE_TENANT, word) == (tenancy >> 1 & WH_MOST(LEASE_TENANT));
}
static inline uint64_t wh_ticket_word(uint64_t number, uint32_t seats)
{
    return WH_PUT_LOW(TICKET_NUMBER, number) | (seats - 1);
}
static inline uint32_t wh_ticket_seats(uint64_t word)
{
    return (uint32_t)WH_GET(TICKET_SEATS, word) + 1;
}

/* A block of the payload heap, and a chunk. */
static inline uint32_t wh_block_word(uint32_t chunk, uint32_t index)
{
    return (uint32_t)(WH_MASK(BLOCK_SET) | WH_PUT(BLOCK_CHUNK, chunk) | index);
}
static inline uint32_t wh_block_chunk(uint32_t word) { return (uint32_t)WH_GET(BLOCK_CHUNK, word); }
static inline uint32_t wh_block_index(uint32_t word) { return (uint32_t)WH_GET(BLOCK_INDEX, word); }
static inline bool wh_block_is_set(uint32_t word) { return WH_GET(BLOCK_SET, word) != 0; }
static inline uint32_t wh_chunk_word(uint32_t kind, uint32_t worker, bool held)
{
    return (uint32_t)(WH_PUT(CHUNK_HELD, held) | WH_PUT(CHUNK_WORKER, worker) | kind);
}
static inline uint32_t wh_chunk_class(uint32_t word) { return (uint32_t)WH_GET(CHUNK_CLASS, word); }
static inline uint32_t wh_chunk_worker(uint32_t word)
{
    return (uint32_t)WH_GET(CHUNK_WORKER, word);
}
static inline bool wh_chunk_is_held(uint32_t word) { return WH_GET(CHUNK_HELD, word) != 0; }

/* size.made: odd, another number for each line that a worker opens. */
static inline uint64_t wh_made_word(uint64_t tenant, uint64_t number)
{
    return WH_PUT(MADE_TENANT, tenant) | WH_PUT_LOW(MADE_NUMBER, number) | WH_MASK(MADE_OPEN);
}

#endif
