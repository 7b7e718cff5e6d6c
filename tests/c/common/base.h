/* Base: failure and random numbers, for the harness and the sweeps. A program says in fail_where()
 * how to have the run in hand again, and in fail_end() what else is to be ended. */
#ifndef COMMON_BASE_H
#define COMMON_BASE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MS 1000000ll

typedef unsigned long long ull;

static void fail_where(void);
static void fail_end(void);

static inline const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Print why and end at once: other threads may be stuck. */
#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fail_where();                                                                              \
        printf(": %s:%d: ", base_name(__FILE__), __LINE__);                                        \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        fflush(stdout);                                                                            \
        fail_end();                                                                                \
        _exit(1);                                                                                  \
    } while (0)
#define CHECK(holds, ...)                                                                          \
    do {                                                                                           \
        if (!(holds))                                                                              \
            FAIL(__VA_ARGS__);                                                                     \
    } while (0)

/* -- random numbers (splitmix64) --------------------------------------------------------------- */

static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static inline uint64_t rng_mix(uint64_t a, uint64_t b)
{
    uint64_t state = a ^ b * 0xd1342543de82ef95ull;
    return rng_next(&state);
}

#endif
