/* Agreed: what two processes must interpret alike, besides the fields of layout.h and the parts of
 * words (packing.h): constants, enumerations, and the result of each function on a word.
 *
 * All of it goes into the fingerprint (geometry.h): name and value of each constant, and the result
 * for a sample. tools/agreed.py looks for a constant of a header that is neither in the list nor
 * known to be one process's own. */
#ifndef WHEELD_AGREED_H
#define WHEELD_AGREED_H

#include <string.h>

#include "wheeld/shared/layout.h"
#include "wheeld/shared/key_hash.h"
#include "wheeld/shared/ring.h"
#include "wheeld/shared/slot.h"

#define WH_TRACE_PERIODIC 4u /* in flags, above the kind of clock */
#define WH_TRACE_FOUND 8u

/* The sets of a directory for so many slots: room for the last timer of each, for half as many
 * other keys, and for 32,768 more. */
static inline uint32_t wh_set_count(uint32_t capacity)
{
    uint64_t places = 32768 + (uint64_t)capacity + capacity / 2;
    return (uint32_t)((places + WH_WORD_PLACES - 1) / WH_WORD_PLACES);
}
/* The two sets that the word of a key may be in: of its hash's upper half, of its check. */
static inline uint32_t wh_word_set_of(uint32_t half, uint32_t sets)
{
    return (uint32_t)((uint64_t)half * sets >> 32);
}

/* clang-format off */
#define WH_AGREED(K)                                                                               \
    K(WH_LAYOUT_VERSION) K(WH_MAGIC) K(WH_LINE) K(WH_SLAB_BITS) K(WH_SLAB_SLOTS)                   \
    K(WH_MAX_CAPACITY) K(WH_MAX_WORKERS) K(WH_MAX_WHEEL_BITS) K(WH_UNDO_ENTRIES) K(WH_GROUPS)      \
    K(WH_PARKED) K(WH_TAKING) K(WH_SPLIT) K(WH_HOLDER_NOBODY) K(WH_ASK_ALL)                    \
    K(WH_TARGET_GROUP) K(WH_NIL)                                                                   \
    K(WH_BUCKET_BITS) K(WH_BUCKETS) K(WH_MARK_WORDS) K(WH_SIZES) K(WH_POOLS) K(WH_MAX_POOL_BYTES)  \
    K(WH_POOL_NOBODY) K(WH_MIN_TRACE_BITS) K(WH_MAX_TRACE_BITS) K(WH_NO_ROW) K(WH_TRACE_KINDS)     \
    K(WH_TRACE_PERIODIC) K(WH_TRACE_FOUND) K(WH_TRACED_TICK) K(WH_VERSION_MASK) K(WH_MOST_KEPT)   \
    K(WH_CLOCK_KINDS) K(WH_NOTES) K(WH_WORD_PLACES) K(WH_LONG_KEY) K(WH_KEYED)                     \
    K(WH_KEY_CLOSED)                                                                               \
    K(WH_WORD_EMPTY) K(WH_WORD_LIVE) K(WH_WORD_COMING) K(WH_WORD_OVER) K(WH_WORD_EMPTYING)         \
    K(WH_WORD_TIMER) K(WH_WORD_LIMIT) K(WH_WORD_LEASE) K(WH_LEASE_PLACES)                        \
    K(WH_LEASE_CHOICES) K(WH_KIND_KEYS)                                                            \
    K(WH_KIND_WHEEL) K(WH_KIND_SLOTS) K(WH_KIND_REGISTRY) K(WH_KIND_WORKER) K(WH_KIND_WATCH)       \
    K(WH_KIND_POOLS) K(WH_KIND_TRACE) K(WH_NEVER) K(WH_ARMED) K(WH_CANCELLED) K(WH_FIRED)          \
    K(WH_TAKEN) K(WH_DONE) K(WH_CLOSED) K(WH_CLOCK_BASE) K(WH_CLOCK_REALTIME)                      \
    K(WH_CLOCK_BOOTTIME) K(WH_PRIVATE) K(WH_DETACHED) K(WH_LASTING) K(WH_HELD)                     \
    K(WH_OP_SCHEDULE) K(WH_OP_CANCEL) K(WH_OP_RESCHEDULE)                                          \
    K(WH_EV_EXPIRED) K(WH_EV_TICK) K(WH_EV_LENT) K(WH_EV_OFFER) K(WH_STAGE_OPEN)                   \
    K(WH_STAGE_TICKED) K(WH_STAGE_WAIT_TICK) K(WH_STAGE_WAIT_EXPIRE) K(WH_STAGE_WAIT_RETURN)       \
    K(WH_STAGE_LENT) K(WH_STAGE_EXPIRED) K(WH_STAGE_RETURNED) K(WH_STAGE_RECLAIMED)                \
    K(WH_STAGE_HANDED) K(WH_STAGE_OFFERED) K(WH_STAYS) K(WH_LEAVE_DROP) K(WH_LEAVE_KEEP)           \
    K(WH_LEAVE_REROUTE) K(WH_ROW_FREE) K(WH_ROW_ATTACHING) K(WH_ROW_ACTIVE) K(WH_ROW_DYING)        \
    K(WH_ROW_KEPT) K(WH_TRACE_SCHEDULED) K(WH_TRACE_RESCHEDULED) K(WH_TRACE_CANCELLED)             \
    K(WH_TRACE_EXPIRED) K(WH_TRACE_DROPPED) K(WH_TRACE_LOST) K(WH_HISTOGRAM_BITS)                  \
    K(WH_HISTOGRAM_TOP) K(WH_HISTOGRAM_BUCKETS) K(WH_COUNTS_LATENESS) K(WH_COUNTS_PASS)            \
    K(WH_COUNTS_FIRED) K(WH_COUNTS_DRAINED) K(WH_COUNTS_OVERSLEPT) K(WH_COUNTS_OF_ROWS)            \
    K(WH_CHUNK_BYTES) K(WH_CHUNK_BLOCKS) K(WH_CHUNK_DATA) K(WH_MAX_CHUNKS) K(WH_MAX_PAYLOAD)       \
    K(WH_IN_HEAP) K(WH_HEAP_CLASSES)                                                               \
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
    W(wh_state_moved(0x12345678ffffff5aull))                                                       \
    W(wh_state_ticked(0x12345678ffffff5aull))                                                      \
    W(wh_interval_word(0x123456789abcdef1ll, 0x9abcdef1u))                                         \
    W(wh_interval_word(0x1123456789abll, 0x9abcdef1u))                                             \
    W(wh_interval_ns(0x123456789abcdef1ll))                                                        \
    W(wh_flags_moved(0xffffu))                                                                     \
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
    W(wh_block_word(0x2bcdefu, 0x1abu))                                                            \
    W(wh_block_chunk(0x9abcdef1u))                                                                 \
    W(wh_block_index(0x9abcdef1u))                                                                 \
    W(wh_block_is_set(0x9abcdef1u))                                                                \
    W(wh_chunk_word(0x5au, 0x9bcu, true))                                                          \
    W(wh_chunk_class(0x9abcdef1u))                                                                 \
    W(wh_chunk_worker(0x9abcdef1u))                                                                \
    W(wh_chunk_is_held(0x9abcdef1u))                                                               \
    W(wh_heap_class(70))                                                                           \
    W(wh_heap_room(7))                                                                             \
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
    W(wh_word_set_of(0xf2345678u, 12345))                                                          \
    W(wh_limit_word(0x123456789abcdefll, 0x5a, 22))                                                \
    W(wh_limit_ends(0xf23456789abcdef1ull))                                                        \
    W(wh_lease_word(0x123456789abcdefll, 0x5a5, 0x1235, true))                                     \
    W(wh_lease_ends(0xf23456789abcdef1ull))                                                        \
    W(wh_lease_row(0xf23456789abcdef1ull))                                                         \
    W(wh_lease_is_granted(0xf23456789abcdef1ull))                                                  \
    W(wh_lease_names(0xf23456789abcdef1ull, 0x12345ull))                                           \
    W(wh_ticket_word(0xf23456789abcdef1ull, 0x155))                                                \
    W(wh_ticket_seats(0xf23456789abcdef1ull))                                                      \
    W(wh_set_count(1000000))                                                                       \
    W(wh_histogram_bucket(0x123456789abull))

/* -- the fingerprint --------------------------------------------------------------------------- */

/* The lists of layout.h, packing.h and above as tables, and the fingerprint: the hash of them.
 *
 * Two builds with the same fingerprint agree on every offset, size, constant and packing of a
 * word.
 *
 * The tables hold no pointers: names stand one after the other, each with its zero byte. A shared
 * library has nothing to relocate in them, and the code is a few loops.
 */
typedef struct wh_field_at {
    uint32_t offset;
    uint16_t size, count; /* of one element, bytes; elements */
} wh_field_at;

typedef struct wh_struct_table {
    const char *name;
    const char *fields; /* "type name" of each, one after the other */
    const wh_field_at *at;
    uint32_t field_count, size;
} wh_struct_table;

#define WH_TABLE_TEXT(type, name, ...) #type " " #name "\0"
#define WH_TABLE_AT(type, name, ...) {offsetof(wh_tabled, name), sizeof(type), 1},
#define WH_TABLE_ARRAY_AT(type, name, count, ...) {offsetof(wh_tabled, name), sizeof(type), count},

/* wh_table_of_head() and so on: one struct's fields. */
#define WH_TABLE(struct_name, struct_type, list)                                                   \
    static inline wh_struct_table wh_table_of_##struct_name(void)                                  \
    {                                                                                              \
        typedef struct_type wh_tabled;                                                             \
        static const char fields[] = list(WH_TABLE_TEXT, WH_TABLE_TEXT, WH_TABLE_TEXT);            \
        static const wh_field_at at[] = {list(WH_TABLE_AT, WH_TABLE_AT, WH_TABLE_ARRAY_AT)};       \
        return (wh_struct_table){#struct_name, fields, at, sizeof at / sizeof *at,                 \
                                 sizeof(struct_type)};                                             \
    }
WH_STRUCTS(WH_TABLE)

/* The parts of words: "WORD PART", and first bit and bits. */
#define WH_PART_TEXT(word, part, ...) #word " " #part "\0"
#define WH_PART_BITS(word, part, at, bits, ...) {at, bits},
static const char wh_part_names[] = WH_PACKED(WH_PART_TEXT);
static const struct wh_part_bits {
    uint8_t at, bits;
} wh_part_bits[] = {WH_PACKED(WH_PART_BITS)};

/* The constants of WH_AGREED. */
#define WH_CONSTANT_TEXT(name) #name "\0"
#define WH_CONSTANT_VALUE(name) (uint64_t)(name),
static const char wh_constant_names[] = WH_AGREED(WH_CONSTANT_TEXT);
static const uint64_t wh_constants[] = {WH_AGREED(WH_CONSTANT_VALUE)};

/* The text behind this one. */
static inline const char *wh_text_after(const char *text) { return text + strlen(text) + 1; }

static inline uint64_t wh_hash_text(uint64_t h, const char *text)
{
    for (; *text; text++)
        h = (h ^ (uint8_t)*text) * 0x100000001b3ull; /* FNV-1a */
    return h;
}

static inline uint64_t wh_hash_words(uint64_t h, const uint64_t *words, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t word = words[i];
        for (int byte = 0; byte < 8; byte++, word >>= 8)
            h = (h ^ (word & 0xff)) * 0x100000001b3ull;
    }
    return h;
}

static inline wh_cold uint64_t wh_hash_struct(uint64_t h, wh_struct_table s)
{
    uint64_t word = s.size;
    const char *text = s.fields;
    h = wh_hash_words(wh_hash_text(h, s.name), &word, 1);
    for (uint32_t i = 0; i < s.field_count; i++, text = wh_text_after(text)) {
        word = s.at[i].offset;
        h = wh_hash_words(wh_hash_text(h, text), &word, 1);
    }
    return h;
}

/* The fingerprint of this build; `h` is the hash of its geometry (geometry.h). */
static inline wh_cold uint64_t wh_hash_agreed(uint64_t h)
{
#define WH_HASH_STRUCT(name, ...) h = wh_hash_struct(h, wh_table_of_##name());
    WH_STRUCTS(WH_HASH_STRUCT)
    const char *text = wh_part_names;
    for (size_t i = 0; i < sizeof wh_part_bits / 2; i++, text = wh_text_after(text)) {
        uint64_t part[] = {wh_part_bits[i].at, wh_part_bits[i].bits};
        h = wh_hash_words(wh_hash_text(h, text), part, 2);
    }
    text = wh_constant_names;
    for (size_t i = 0; i < sizeof wh_constants / 8; i++, text = wh_text_after(text))
        h = wh_hash_words(wh_hash_text(h, text), &wh_constants[i], 1);
#define WH_SAMPLE(word) (uint64_t)(word),
    const uint64_t samples[] = {WH_AGREED_WORDS(WH_SAMPLE)};
    return wh_hash_words(h, samples, sizeof samples / 8);
}

#endif
