/* Geometry: how large each segment is and where its parts stand; creation and attach.
 *
 * Attach returns a value, not a bool, because the caller reacts differently to an absent, a
 * half-made and a foreign segment.
 */
#ifndef WHEELD_GEOMETRY_H
#define WHEELD_GEOMETRY_H

#include <string.h>

#include "wheeld/shared/agreed.h"
#include "wheeld/shared/slot.h"
#include "wheeld/shared/wheel.h"

typedef struct wh_config {
    int64_t tick_ns;
    uint32_t wheel_bits, capacity, max_workers, payload_bytes, virtual_clock;
    uint32_t homes; /* the last slabs of `capacity`: see layout.h */
    uint32_t heap_chunks, max_payload, detached_most;
    uint32_t heap_backed; /* the chunks with memory at creation; 0: all */
    uint32_t backed; /* slabs before those with memory at creation; 0: all (backing.h) */
    int64_t origin_ns; /* where the wheel begins: now, or the start of a virtual clock */
    uint64_t token;
} wh_config;

typedef struct wh_geometry {
    uint32_t levels, words, shards, lists, slab_count, sub_bits, comp_bits, ret_bits;
    uint64_t ports_off, undo_off, histograms_off, shards_off, summary_off, occupancy_off, links_off,
        holders_off, wheel_bytes;
    uint64_t owners_off, states_off, slots_off, payloads_off, blocks_off, chunks_off, heap_off,
        slots_bytes;
    uint64_t rows_off, groups_off, registry_bytes;
    uint64_t counts_off, sub_off, comp_off, ret_off, worker_bytes;
} wh_geometry;

static inline uint64_t wh_align(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static inline uint32_t wh_bits_between(uint64_t entries, uint32_t low, uint32_t high)
{
    uint32_t bits = low;
    while (bits < high && (1ull << bits) < entries)
        bits++;
    return bits;
}

/* A shard for each worker, or, where that would take too much memory for its empty buckets, for
 * some of them together: 2 MiB is never too much, nor are four bytes per slot. */
static inline uint32_t wh_shards_for(const wh_config *c)
{
    uint32_t each = 1u << wh_shard_bits(c->wheel_bits), shards = 1;
    uint32_t most = c->capacity / 8 < 1u << 16 ? 1u << 16 : c->capacity / 8;
    most = most > 1u << 21 ? 1u << 21 : most;
    while (shards < c->max_workers && 2 * shards * each <= most)
        shards *= 2;
    return shards;
}

/* Rings grow with the wheel: a batch of an eighth of the capacity fits into the submission ring,
 * and its slots into the return ring. */
static inline wh_cold wh_geometry wh_geometry_of(const wh_config *c)
{
    wh_geometry g = {0};
    g.levels = wh_levels_for(c->wheel_bits);
    g.words = wh_words_for(c->wheel_bits);
    g.shards = wh_shards_for(c);
    g.lists = (g.shards << wh_shard_bits(c->wheel_bits)) + 3 * c->max_workers;
    g.slab_count = c->capacity >> WH_SLAB_BITS;
    g.sub_bits = wh_bits_between(c->capacity / 8, 10, 17);
    g.comp_bits = wh_bits_between(c->capacity / 32, 10, 15);
    g.ret_bits = wh_bits_between(c->capacity / 8, 10, 17);
    g.ports_off = wh_align(sizeof(wh_wheel_seg), WH_LINE);
    g.undo_off = g.ports_off + (uint64_t)c->max_workers * sizeof(wh_port);
    uint64_t levels = (uint64_t)g.shards << (wh_shard_bits(c->wheel_bits) - c->wheel_bits);
    g.histograms_off = wh_align(g.undo_off + WH_UNDO_ENTRIES * sizeof(wh_undo), WH_LINE);
    g.shards_off =
        g.histograms_off + sizeof(wh_histogram) * ((uint64_t)WH_COUNTS_OF_ROWS + c->max_workers);
    g.summary_off = wh_align(g.shards_off + sizeof(wh_shard) * g.shards, WH_LINE);
    g.occupancy_off = wh_align(g.summary_off + 8 * levels, WH_LINE);
    g.links_off = wh_align(g.occupancy_off + 8 * levels * g.words, 4096);
    g.holders_off =
        wh_align(g.links_off + sizeof(wh_link) * ((uint64_t)c->capacity + g.lists), WH_LINE);
    g.wheel_bytes = wh_align(g.holders_off + sizeof(wh_holder) * (uint64_t)c->capacity, 4096);
    g.owners_off = wh_align(sizeof(wh_slots_seg), WH_LINE);
    g.states_off = wh_align(g.owners_off + 8ull * g.slab_count, 4096);
    g.slots_off = wh_align(g.states_off + 8ull * c->capacity, 4096);
    g.payloads_off = g.slots_off + sizeof(wh_slot) * (uint64_t)c->capacity;
    g.blocks_off = wh_align(g.payloads_off + (uint64_t)c->payload_bytes * c->capacity, WH_LINE);
    g.chunks_off = wh_align(g.blocks_off + sizeof(wh_block) * (uint64_t)c->capacity, 4096);
    g.heap_off = wh_align(g.chunks_off + sizeof(wh_chunk) * (uint64_t)c->heap_chunks, 4096);
    g.slots_bytes = g.heap_off + (uint64_t)c->heap_chunks * WH_CHUNK_BYTES;
    g.rows_off = wh_align(sizeof(wh_registry_seg), WH_LINE);
    g.groups_off = g.rows_off + sizeof(wh_row) * (uint64_t)c->max_workers;
    g.registry_bytes = wh_align(g.groups_off + WH_GROUPS * sizeof(wh_group), 4096);
    g.counts_off = wh_align(sizeof(wh_worker_seg), WH_LINE);
    g.sub_off = g.counts_off + sizeof(wh_histogram) * WH_COUNTS_OF_WORKER;
    g.comp_off = wh_align(g.sub_off + (8ull << g.sub_bits), 4096);
    g.ret_off = wh_align(g.comp_off + (sizeof(wh_completion) << g.comp_bits), 4096);
    g.worker_bytes = wh_align(g.ret_off + (4ull << g.ret_bits), 4096);
    return g;
}

static inline wh_port *wh_port_of(void *wheel_memory, const wh_geometry *g, uint32_t worker)
{
    return (wh_port *)((char *)wheel_memory + g->ports_off) + worker;
}

static inline wh_histogram *wh_histograms_of(void *wheel_memory, const wh_geometry *g)
{
    return (wh_histogram *)((char *)wheel_memory + g->histograms_off);
}

static inline wh_parts wh_parts_of(void *wheel_memory, const wh_geometry *g)
{
    char *base = wheel_memory;
    return (wh_parts){.links = (wh_link *)(base + g->links_off),
                      .shards = (wh_shard *)(base + g->shards_off),
                      .summary = (uint64_t *)(base + g->summary_off),
                      .occupancy = (uint64_t *)(base + g->occupancy_off)};
}

/* Is it in the layout's range? Then nothing derived from it overflows or divides by zero. */
static inline bool wh_config_fits(const wh_config *c)
{
    return c->capacity >= WH_SLAB_SLOTS && c->capacity <= WH_MAX_CAPACITY &&
           c->capacity % WH_SLAB_SLOTS == 0 && c->max_workers >= 1 &&
           c->max_workers <= WH_MAX_WORKERS && c->tick_ns >= 1 && c->wheel_bits >= 1 &&
           c->wheel_bits <= WH_MAX_WHEEL_BITS && c->payload_bytes < 65536 &&
           c->payload_bytes % 8 == 0 && c->heap_chunks <= WH_MAX_CHUNKS &&
           c->max_payload <= WH_MAX_PAYLOAD && c->origin_ns >= 0 &&
           (c->homes == 0 ||
            (c->homes == c->max_workers && c->homes < c->capacity / WH_SLAB_SLOTS));
}

/* The configuration that a wheel segment was made with. A client's daemon may be a false one, and
 * may write there again: the values are read once here, then checked, and only these are used. */
static inline wh_cold wh_config wh_config_of(const wh_wheel_seg *seg)
{
    wh_config c = {.tick_ns = seg->tick_ns,
                   .wheel_bits = seg->wheel_bits,
                   .capacity = seg->capacity,
                   .max_workers = seg->max_workers,
                   .payload_bytes = seg->payload_bytes,
                   .virtual_clock = seg->virtual_clock,
                   .homes = seg->homes,
                   .heap_chunks = seg->heap_chunks,
                   .max_payload = seg->max_payload,
                   .detached_most = seg->detached_most,
                   .token = seg->head.token};
    wh_step(); /* so that the compiler cannot read them again after this */
    return c;
}

/* All offsets, for a wheel of odd sizes. */
static inline wh_cold uint64_t wh_hash_geometry(uint64_t h)
{
    wh_config sample = {.wheel_bits = 7,
                        .capacity = 64 * 331,
                        .max_workers = 13,
                        .payload_bytes = 24,
                        .heap_chunks = 5};
    wh_geometry g = wh_geometry_of(&sample);
    uint64_t words[] = {g.levels,       g.words,          g.lists,      g.slab_count,
                        g.sub_bits,     g.comp_bits,      g.ret_bits,   g.ports_off,
                        g.undo_off,     g.histograms_off, g.counts_off, g.shards_off,
                        g.summary_off,  g.occupancy_off,  g.links_off,  g.holders_off,
                        g.wheel_bytes,  g.owners_off,     g.states_off, g.slots_off,
                        g.payloads_off, g.blocks_off,     g.chunks_off, g.heap_off,
                        g.slots_bytes,  g.rows_off,       g.groups_off, g.registry_bytes,
                        g.sub_off,      g.comp_off,       g.ret_off,    g.worker_bytes};
    return wh_hash_words(h, words, sizeof words / sizeof *words);
}

/* The hash of all that two builds must agree on. */
static inline wh_cold uint64_t wh_fingerprint(void)
{
    return wh_hash_agreed(wh_hash_geometry(0xcbf29ce484222325ull));
}

enum wh_attach {
    WH_ATTACH_READY = 0,
    WH_ATTACH_TOO_SHORT, /* smaller than a header, or than its header says */
    WH_ATTACH_NOT_READY, /* its creator has not published it (yet) */
    WH_ATTACH_FOREIGN, /* not a segment of wheeld, or of another kind */
    WH_ATTACH_VERSION, /* another layout version */
    WH_ATTACH_FINGERPRINT /* the same version, built differently */
};

static inline void wh_head_publish(wh_head *head, enum wh_kind kind, uint64_t bytes, uint64_t token)
{
    head->layout_version = WH_LAYOUT_VERSION;
    head->bytes = bytes;
    head->token = token;
    head->fingerprint = wh_fingerprint();
    /* pairs: ready - else a client could attach to sizes that are not written yet */
    wh_store_release(&head->magic, WH_MAGIC | kind);
}

static inline enum wh_attach wh_head_attach(const void *memory, uint64_t bytes, enum wh_kind kind)
{
    const wh_head *head = memory;
    if (bytes < sizeof(wh_head))
        return WH_ATTACH_TOO_SHORT;
    uint64_t magic = wh_load_acquire(&((wh_head *)memory)->magic); /* pairs: ready */
    if (magic == 0)
        return WH_ATTACH_NOT_READY;
    if (magic != (WH_MAGIC | kind))
        return WH_ATTACH_FOREIGN;
    if (head->layout_version != WH_LAYOUT_VERSION)
        return WH_ATTACH_VERSION;
    if (head->fingerprint != wh_fingerprint())
        return WH_ATTACH_FINGERPRINT;
    return head->bytes == bytes ? WH_ATTACH_READY : WH_ATTACH_TOO_SHORT;
}

static inline void wh_create_wheel(void *memory, const wh_config *c)
{
    wh_geometry g = wh_geometry_of(c);
    wh_wheel_seg *seg = memory;
    seg->tick_ns = c->tick_ns;
    seg->wheel_bits = c->wheel_bits;
    seg->levels = g.levels;
    seg->capacity = c->capacity;
    seg->slab_count = g.slab_count;
    seg->max_workers = c->max_workers;
    seg->payload_bytes = c->payload_bytes;
    seg->sub_bits = g.sub_bits;
    seg->comp_bits = g.comp_bits;
    seg->ret_bits = g.ret_bits;
    seg->virtual_clock = c->virtual_clock;
    seg->shards = g.shards;
    seg->lists = g.lists;
    seg->homes = c->homes;
    seg->heap_chunks = c->heap_chunks;
    seg->max_payload = c->max_payload;
    seg->detached_most = c->detached_most;
    wh_store_relaxed(&seg->heap_backed, c->heap_backed && c->heap_backed < c->heap_chunks
                                            ? c->heap_backed
                                            : c->heap_chunks);
    seg->ports_off = g.ports_off;
    seg->histograms_off = g.histograms_off;
    seg->shards_off = g.shards_off;
    seg->summary_off = g.summary_off;
    seg->occupancy_off = g.occupancy_off;
    seg->links_off = g.links_off;
    seg->undo_off = g.undo_off;
    seg->holders_off = g.holders_off;
    wh_store_relaxed(&seg->sleep_until, INT64_MIN);
    wh_store_relaxed(&seg->virtual_now, c->origin_ns);
    wh_wheel w;
    wh_wheel_bind(&w, wh_parts_of(memory, &g), c->capacity, g.shards, c->wheel_bits, c->tick_ns);
    uint32_t shared = g.slab_count - c->homes,
             backed = c->backed && c->backed < shared ? c->backed : shared;
    wh_store_relaxed(&seg->backed, backed);
    for (uint32_t slot = 0; slot < c->capacity; slot++)
        if (slot >> WH_SLAB_BITS < backed || slot >> WH_SLAB_BITS >= shared)
            w.links[slot].list = WH_NIL;
    for (uint32_t list = 0; list < g.lists; list++)
        wh_list_reset(&w, list);
    wh_wheel_reset(&w, (uint64_t)(c->origin_ns / c->tick_ns));
    wh_store_relaxed(&seg->tick, w.tick);
    wh_head_publish(&seg->head, WH_KIND_WHEEL, g.wheel_bytes, c->token);
}

static inline void wh_create_slots(void *memory, const wh_config *c)
{
    wh_geometry g = wh_geometry_of(c);
    wh_slots_seg *seg = memory;
    seg->owners_off = g.owners_off;
    seg->states_off = g.states_off;
    seg->slots_off = g.slots_off;
    seg->payloads_off = g.payloads_off;
    seg->blocks_off = g.blocks_off;
    seg->chunks_off = g.chunks_off;
    seg->heap_off = g.heap_off;
    wh_head_publish(&seg->head, WH_KIND_SLOTS, g.slots_bytes, c->token);
}

static inline void wh_create_registry(void *memory, const wh_config *c, const char *boot_id)
{
    wh_geometry g = wh_geometry_of(c);
    wh_registry_seg *seg = memory;
    seg->rows_off = g.rows_off;
    seg->row_count = c->max_workers;
    seg->groups_off = g.groups_off;
    strncpy(seg->boot_id, boot_id, sizeof seg->boot_id - 1);
    wh_head_publish(&seg->head, WH_KIND_REGISTRY, g.registry_bytes, c->token);
}

/* The rings of a new tenant go on where those of the last one in its row stood: `port` is the row's
 * port in the wheel segment. */
static inline void wh_create_worker(void *memory, const wh_config *c, const wh_port *port)
{
    wh_geometry g = wh_geometry_of(c);
    wh_worker_seg *seg = memory;
    wh_store_relaxed(&seg->sub_tail, wh_load_relaxed(&port->sub_head));
    wh_store_relaxed(&seg->comp_head, wh_load_relaxed(&port->comp_tail));
    wh_store_relaxed(&seg->ret_head, wh_load_relaxed(&port->ret_tail));
    wh_store_relaxed(&seg->asked, wh_load_relaxed(&port->answered));
    seg->sub_off = g.sub_off;
    seg->comp_off = g.comp_off;
    seg->ret_off = g.ret_off;
    seg->histograms_off = g.counts_off;
    wh_store_relaxed(&seg->goodbye, 1); /* until its client is there */
    wh_head_publish(&seg->head, WH_KIND_WORKER, g.worker_bytes, c->token);
}

#endif
