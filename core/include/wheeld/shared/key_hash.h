/* Key hash: the same for equal keys in every process of one layout, whatever the machine's seed.
 *
 * Eight bytes at a time through a multiply-and-fold; each piece is preceded by its kind and length,
 * so that ("a", "b") is not ("ab",). The low 16 bits are the bucket of the watch directory, the
 * next 32 tell keys of one bucket apart in its mark. A hostile key can at most have the mark of
 * another: that costs looks, never a wrong completion. */
#ifndef WHEELD_KEY_HASH_H
#define WHEELD_KEY_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t wh_hash_fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t wh_hash_add(uint64_t h, uint64_t word)
{
    return wh_hash_fold(h ^ word ^ 0x9e3779b97f4a7c15ull, 0xd6e8feb86659fd93ull);
}

/* The last bytes of a piece, less than 8, as a word. */
static inline uint64_t wh_hash_rest(const char *p, size_t n)
{
    uint64_t word = 0;
    uint32_t four, at = 0;
    uint16_t two;
    if (n & 4) {
        memcpy(&four, p, 4);
        word = four, at = 4;
    }
    if (n & 2) {
        memcpy(&two, p + at, 2);
        word |= (uint64_t)two << 8 * at, at += 2;
    }
    return n & 1 ? word | (uint64_t)(uint8_t)p[at] << 8 * at : word;
}

/* Go on with `lanes` hashes of the same piece at once: none waits for another. */
static inline __attribute__((always_inline)) void
wh_hash_lanes(uint64_t *h, uint32_t lanes, uint32_t kind, const void *bytes, size_t n)
{
    const char *p = bytes;
    uint64_t word = (uint64_t)kind << 56 ^ n;
    for (uint32_t i = 0; i < lanes; i++)
        h[i] = wh_hash_add(h[i], word);
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&word, p, 8);
        for (uint32_t i = 0; i < lanes; i++)
            h[i] = wh_hash_add(h[i], word);
    }
    word = wh_hash_rest(p, n);
    for (uint32_t i = 0; i < lanes; i++)
        h[i] = wh_hash_add(h[i], word);
}

/* Hash a piece of a key: `kind` distinguishes a str from bytes of the same content. */
static inline uint64_t wh_hash_piece(uint64_t h, uint32_t kind, const void *bytes, size_t n)
{
    wh_hash_lanes(&h, 1, kind, bytes, n);
    return h;
}

/* The same of two hashes. */
static inline void wh_hash_both(uint64_t h[2], uint32_t kind, const void *bytes, size_t n)
{
    wh_hash_lanes(h, 2, kind, bytes, n);
}

static inline uint32_t wh_hash_bucket(uint64_t h) { return (uint32_t)(h & 0xffff); }

/* The word of marks that the key's bucket is in, and the key's bits of it: of the lower 16 the one
 * of its bucket, of the upper 48 four by other bits of the hash. All are set at once, so none of
 * them is seen without the others. */
static inline uint32_t wh_hash_mark_word(uint64_t h) { return wh_hash_bucket(h) / 16; }

static inline uint64_t wh_hash_mark(uint64_t h)
{
    uint64_t mark = 1ull << h % 16;
    for (uint32_t shift = 16; shift < 48; shift += 8)
        mark |= 1ull << (16 + ((h >> shift & 0xff) * 48 >> 8));
    return mark;
}

/* The marks of all keys in a bucket. */
static inline uint64_t wh_bucket_marks(uint32_t bucket)
{
    return ~0ull << 16 | 1ull << bucket % 16;
}

/* Might the key have been marked? Never false for a key that was marked. */
static inline bool wh_hash_is_marked(uint64_t h, uint64_t marks)
{
    uint64_t mark = wh_hash_mark(h);
    return (marks & mark) == mark;
}

#endif
