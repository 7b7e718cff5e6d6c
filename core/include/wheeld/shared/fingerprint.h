/* Fingerprint: the lists of layout.h, packing.h and agreed.h as tables, and the hash of them.
 *
 * Two builds with the same fingerprint agree on every offset, size, constant and packing of a
 * word.
 *
 * The tables hold no pointers: names stand one after the other, each with its zero byte. A shared
 * library has nothing to relocate in them, and the code is a few loops.
 */
#ifndef WHEELD_FINGERPRINT_H
#define WHEELD_FINGERPRINT_H

#include <string.h>

#include "wheeld/shared/agreed.h"

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

/* That of this build; `h` is the hash of its geometry (geometry.h). */
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
