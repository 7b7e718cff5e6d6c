/* Buckets: what a cascade and a cancel cost per node, for three ways to keep a bucket.
 *
 *   list    links only: the next node is known when the last one has been read
 *   notes   the same links, and beside them numbers of nodes in blocks, as hints (prefetch.h)
 *   blocks  no links: a bucket is a chain of blocks of (node, due tick); a node knows its block and
 *           place, and the last one of the bucket moves into the hole of one that is cancelled
 *
 * A million nodes, in random order in memory as timers are after a while. Each is moved down a
 * level once, then half of them are cancelled in random order. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NODES (1u << 20)
#define DIGITS 64
#define BUCKETS (2 * DIGITS) /* an upper level, a lower one */
#define AHEAD 12
#define NIL UINT32_MAX

typedef struct node { /* as wide as a link of the wheel */
    uint32_t next, prev, list, gen; /* blocks: next is the block, prev the place in it */
    uint64_t completion;
    int64_t due;
} node;

typedef struct block { /* a cache line */
    uint32_t next, used;
    struct {
        uint32_t node, due;
    } in[7];
} block;

typedef struct hints {
    uint32_t next, nodes[15];
} hints;

static node nodes[NODES + BUCKETS];
static block blocks[NODES / 3];
static hints notes[NODES / 4];
static uint32_t first[BUCKETS], last[BUCKETS], fill[BUCKETS], fresh = 1, freed;
static uint32_t order[NODES];
static uint64_t rng = 88172645463325252ull;

static uint32_t below(uint32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)((rng >> 32) * n >> 32);
}

static void shuffle(void)
{
    for (uint32_t i = NODES; i-- > 1;) {
        uint32_t j = below(i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint32_t lower(int64_t due) { return DIGITS + (uint32_t)(due & (DIGITS - 1)); }

/* -- list, and notes beside it ---------------------------------------------------------------- */

static bool noting;

static void note(uint32_t bucket, uint32_t n)
{
    if (!first[bucket] || fill[bucket] == 15) {
        uint32_t b = freed ? freed : fresh++;
        freed = freed ? notes[freed].next : 0;
        notes[b].next = 0;
        *(first[bucket] ? &notes[last[bucket]].next : &first[bucket]) = b;
        last[bucket] = b;
        fill[bucket] = 0;
    }
    notes[last[bucket]].nodes[fill[bucket]++] = n;
}

static void list_add(uint32_t bucket, uint32_t n, int64_t due)
{
    uint32_t s = NODES + bucket, tail = nodes[s].prev;
    nodes[n].next = s, nodes[n].prev = tail, nodes[n].list = bucket, nodes[n].due = due;
    nodes[tail].next = nodes[s].prev = n;
    if (noting)
        note(bucket, n);
}

static void list_remove(uint32_t n)
{
    nodes[nodes[n].prev].next = nodes[n].next;
    nodes[nodes[n].next].prev = nodes[n].prev;
    nodes[n].list = NIL;
}

static void list_empty(uint32_t bucket)
{
    uint32_t s = NODES + bucket, n, b = first[bucket], at = 0;
    for (uint32_t done = 0; (n = nodes[s].next) != s; done++) {
        for (uint32_t more = done ? 1 : AHEAD; noting && b && more; more--) {
            if (b == last[bucket] && at == fill[bucket])
                break;
            __builtin_prefetch(&nodes[notes[b].nodes[at]], 1, 3);
            if (++at == 15) {
                uint32_t old = b;
                b = b == last[bucket] ? 0 : notes[b].next;
                at = 0;
                notes[old].next = freed, freed = old;
            }
        }
        list_remove(n);
        list_add(lower(nodes[n].due), n, nodes[n].due);
    }
    first[bucket] = 0;
}

/* -- blocks ------------------------------------------------------------------------------------ */

static void block_add(uint32_t bucket, uint32_t n, int64_t due)
{
    uint32_t b = first[bucket];
    if (!b || blocks[b].used == 7) {
        b = freed ? freed : fresh++;
        freed = freed ? blocks[freed].next : 0;
        blocks[b].next = first[bucket];
        blocks[b].used = 0;
        first[bucket] = b;
    }
    uint32_t at = blocks[b].used++;
    blocks[b].in[at].node = n, blocks[b].in[at].due = (uint32_t)due;
    nodes[n].next = b, nodes[n].prev = at, nodes[n].list = bucket, nodes[n].due = due;
}

static void block_drop_first(uint32_t bucket)
{
    uint32_t b = first[bucket];
    first[bucket] = blocks[b].next;
    blocks[b].next = freed, freed = b;
}

static void block_remove(uint32_t n)
{
    uint32_t bucket = nodes[n].list, b = nodes[n].next, at = nodes[n].prev, head = first[bucket];
    uint32_t end = --blocks[head].used, moved = blocks[head].in[end].node;
    blocks[b].in[at] = blocks[head].in[end];
    nodes[moved].next = b, nodes[moved].prev = at;
    nodes[n].list = NIL;
    if (end == 0)
        block_drop_first(bucket);
}

static void block_empty(uint32_t bucket)
{
    while (first[bucket]) {
        uint32_t b = first[bucket];
        __builtin_prefetch(&blocks[blocks[b].next], 1, 3);
        for (uint32_t at = 0; at < blocks[b].used; at++)
            __builtin_prefetch(&nodes[blocks[b].in[at].node], 1, 3);
        for (uint32_t at = 0; at < blocks[b].used; at++)
            block_add(lower(blocks[b].in[at].due), blocks[b].in[at].node, blocks[b].in[at].due);
        block_drop_first(bucket);
    }
}

/* -- the three of them ------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    static const struct {
        void (*add)(uint32_t, uint32_t, int64_t), (*empty)(uint32_t), (*remove)(uint32_t);
    } designs[] = {{list_add, list_empty, list_remove},
                   {list_add, list_empty, list_remove},
                   {block_add, block_empty, block_remove}};
    int design = argc > 1 ? atoi(argv[1]) : 0;
    noting = design == 1;
    for (uint32_t i = 0; i < NODES; i++)
        order[i] = i;
    for (uint32_t list = 0; list < BUCKETS; list++)
        nodes[NODES + list].next = nodes[NODES + list].prev = NODES + list;
    shuffle();
    for (uint32_t i = 0; i < NODES; i++)
        designs[design].add(below(DIGITS), order[i], below(1u << 12));
    double begin = cpu_ns();
    for (uint32_t bucket = 0; bucket < DIGITS; bucket++)
        designs[design].empty(bucket);
    double moved = cpu_ns();
    shuffle();
    double shuffled = cpu_ns();
    for (uint32_t i = 0; i < NODES / 2; i++) {
        __builtin_prefetch(&nodes[order[i + AHEAD]], 1, 3); /* as the clock does as it drains */
        designs[design].remove(order[i]);
    }
    printf("{\"cascade, ns\": %.1f, \"cancel, ns\": %.1f}\n", (moved - begin) / NODES,
           (cpu_ns() - shuffled) / (NODES / 2.0));
    return 0;
}
