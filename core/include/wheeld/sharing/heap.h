/* Heap: payloads that have no room beside their slot.
 *
 * Idea. The heap is an array of chunks, 64 KiB each. A chunk has blocks of one size, and begins
 * with their ids: the id of the timer that has the block, or 0. A block is freed by a
 * compare-and-swap of its id to 0, by any process that knows that the timer is over: the worker
 * that cancels or receives it, and the clock once more when the slot is given back. Whoever comes
 * second finds another id, since no two timers have the same, so every block is freed once and
 * nobody has to know who was killed on the way.
 *
 * Blocks are taken by the worker that holds the chunk. It holds it for as long as it takes one
 * block, and nobody waits for it: another worker goes on to the next chunk. A payload that is
 * larger than a chunk is a chain of whole chunks and a rest, which need not be neighbours.
 *
 *     worker                               any process
 *     CAS   word -> held                   load  block of the slot, or of the block before
 *     find  ids[i] == 0                    load  ids[i] == id ?
 *     store block of the slot = i          CAS   ids[i]: id -> 0
 *     store ids[i] = id                    add   freed
 *     store word, not held
 *
 * Invariants
 *  1. A block's number is stored, in its slot or in the block before it, before its id is: what a
 *     killed worker had taken is found from its slots, whether it had armed them or not.
 *  2. Only the worker that holds a chunk sets an id in it, or changes its class; and that only when
 *     no id is set. So an id that names a timer stays where it is until the timer is over.
 *  3. A chain is freed from its end: what is left of it after a kill begins where it began.
 *  4. `taken` and `freed` are hints. A process that is killed between the compare-and-swap and the
 *     addition leaves a chunk that looks fuller than it is; it is counted again before the heap is
 *     said to be full.
 *  5. Chunks from `heap_backed` on have no memory, and are never touched (backing.h).
 *  6. Any worker can write here. Each word is loaded once and checked, each walk is bounded.
 */
#ifndef WHEELD_HEAP_H
#define WHEELD_HEAP_H

#include "wheeld/shared/backing.h"

/* Blocks of the largest payload. */
#define WH_MAX_PIECES (WH_MAX_PAYLOAD / WH_CHUNK_DATA + 1)

/* One process's view of it. */
typedef struct wh_heap {
    wh_chunk *chunks;      /* shared */
    char *memory;          /* shared: of the chunks */
    wh_block *blocks;      /* shared: one per slot */
    wh_au32 *top;          /* shared */
    const wh_au32 *backed; /* shared */
    const wh_au64 *deaths; /* shared: slots_seg.freed, which counts them */
    uint64_t counted;      /* `deaths` when all chunks were counted last, plus one */
    uint32_t count;        /* of the chunks */
    uint32_t me;           /* row + 1 of this worker */
    uint32_t look;         /* the chunk that the next search begins with */
    uint32_t at[WH_HEAP_CLASSES];   /* 1 + the chunk in which the last block was taken */
    uint16_t next[WH_HEAP_CLASSES]; /* the block after that */
} wh_heap;

/* `config` is private and checked. `me`: row + 1 of the worker, or 0. */
static inline wh_heap wh_heap_bind(const wh_config *config, void *wheel, void *slots, uint32_t me)
{
    wh_geometry g = wh_geometry_of(config);
    wh_slots_seg *seg = slots;
    return (wh_heap){.chunks = (wh_chunk *)((char *)slots + g.chunks_off),
                     .memory = (char *)slots + g.heap_off,
                     .blocks = (wh_block *)((char *)slots + g.blocks_off),
                     .top = &seg->heap_top,
                     .backed = &((wh_wheel_seg *)wheel)->heap_backed,
                     .deaths = &seg->freed,
                     .count = config->heap_chunks,
                     .me = me};
}

/* Was a chunk ever used? */
static inline bool wh_heap_used(const wh_heap *h)
{
    return wh_unlikely(wh_load_relaxed(h->top) != 0);
}

/* The chunks that may have blocks. */
static inline uint32_t wh_heap_end(const wh_heap *h)
{
    uint32_t top = wh_load_seq(h->top);                /* pairs: heap-top */
    uint32_t backed = wh_load_acquire(h->backed);      /* pairs: heap-backed */
    uint32_t end = backed < h->count ? backed : h->count;
    return top < end ? top : end;
}

static inline wh_chunk_front *wh_heap_front(const wh_heap *h, uint32_t chunk)
{
    return (wh_chunk_front *)(h->memory + (uint64_t)chunk * WH_CHUNK_BYTES);
}

/* The memory of a block, and its bytes; NULL: the chunk has no such block. */
static inline char *wh_heap_data(const wh_heap *h, uint32_t block, uint32_t *room)
{
    uint32_t chunk = wh_block_chunk(block), index = wh_block_index(block);
    /* pairs: chunk - the class that the chunk had when the block was taken */
    uint32_t kind = wh_chunk_class(wh_load_acquire(&h->chunks[chunk].word)) - 1;
    if (kind >= WH_HEAP_CLASSES || index >= wh_heap_counts[kind])
        return NULL;
    *room = wh_heap_room(kind);
    return (char *)(wh_heap_front(h, chunk) + 1) + (uint64_t)index * *room;
}

/* Is it a block of the timer `id`? */
static inline bool wh_heap_has(const wh_heap *h, uint32_t block, uint64_t id)
{
    if (!wh_block_is_set(block) || wh_block_chunk(block) >= wh_heap_end(h))
        return false;
    /* pairs: block */
    return wh_load_acquire(&wh_heap_front(h, wh_block_chunk(block))->ids[wh_block_index(block)]) ==
           id;
}

static inline wh_au32 *wh_heap_size_word(const wh_heap *h, uint32_t block)
{
    return &wh_heap_front(h, wh_block_chunk(block))->sizes[wh_block_index(block)];
}

/* -- free -------------------------------------------------------------------------------------- */

/* Free one block. True: it was the timer's until now. */
static inline bool wh_heap_free_one(wh_heap *h, uint32_t block, uint64_t id)
{
    uint32_t chunk = wh_block_chunk(block);
    /* pairs: block - what was read of it is read */
    if (!wh_cas_acq_rel(&wh_heap_front(h, chunk)->ids[wh_block_index(block)], &id, 0))
        return false;
    (void)wh_fetch_add_seq(&h->chunks[chunk].freed, 1); /* pairs: chunk-freed */
    return true;
}

/* Free the payload of the timer `id` that begins at `block`, as far as others have not. */
static wh_apart void wh_heap_free(wh_heap *h, uint32_t block, uint64_t id)
{
    uint32_t pieces[WH_MAX_PIECES], count = 0;
    while (count < WH_MAX_PIECES && wh_heap_has(h, block, id)) {
        pieces[count++] = block;
        block = wh_load_relaxed(wh_heap_size_word(h, block));
    }
    while (count)
        (void)wh_heap_free_one(h, pieces[--count], id);
}

/* The timer of `id`, in whose slot nobody arms another one meanwhile, is over. */
static inline void wh_heap_end_of(wh_heap *h, uint64_t id)
{
    wh_heap_free(h, wh_load_relaxed(&h->blocks[wh_id_slot(id)].block), id);
}

/* The slot has no timer: whichever had the block that it names last, or was to have it, is over. */
static wh_apart void wh_heap_clear(wh_heap *h, uint32_t slot)
{
    uint32_t block = wh_load_relaxed(&h->blocks[slot].block);
    if (!wh_block_is_set(block) || wh_block_chunk(block) >= wh_heap_end(h))
        return;
    /* pairs: block */
    uint64_t id =
        wh_load_acquire(&wh_heap_front(h, wh_block_chunk(block))->ids[wh_block_index(block)]);
    if (id != 0 && wh_id_slot(id) == slot)
        wh_heap_free(h, block, id);
}

/* -- take -------------------------------------------------------------------------------------- */

/* How many blocks of a chunk that we hold are taken: make the counts say it. */
static wh_seldom uint32_t wh_heap_count(wh_heap *h, uint32_t chunk, uint32_t kind)
{
    wh_chunk *c = &h->chunks[chunk];
    uint32_t freed = wh_load_seq(&c->freed); /* pairs: chunk-freed - first: later ones count */
    uint32_t taken = 0;
    for (uint32_t i = 0; i < wh_heap_counts[kind]; i++)
        taken += wh_load_relaxed(&wh_heap_front(h, chunk)->ids[i]) != 0;
    wh_store_relaxed(&c->taken, freed + taken);
    return taken;
}

/* How many seem to be: one that was freed while they were counted may be missing. */
static inline uint32_t wh_heap_taken(const wh_chunk *c)
{
    int32_t taken = (int32_t)(wh_load_relaxed(&c->taken) - wh_load_relaxed(&c->freed));
    return taken > 0 ? (uint32_t)taken : 0;
}

/* A free block of a chunk that we hold, from `from` on, or WH_NIL. */
static inline uint32_t wh_heap_find(const wh_heap *h, uint32_t chunk, uint32_t kind, uint32_t from)
{
    wh_chunk_front *front = wh_heap_front(h, chunk);
    uint32_t count = wh_heap_counts[kind];
    for (uint32_t i = from; i < count; i++)
        if (wh_load_acquire(&front->ids[i]) == 0) /* pairs: block - its last reader is done */
            return i;
    for (uint32_t i = 0; i < from && i < count; i++)
        if (wh_load_acquire(&front->ids[i]) == 0) /* pairs: block */
            return i;
    return WH_NIL;
}

/* Hold a chunk, whose word was `word`. False: another worker holds or has held it since. */
static inline bool wh_heap_hold(wh_heap *h, uint32_t chunk, uint32_t word)
{
    /* pairs: chunk - what its last holder has done is seen */
    return wh_cas_acq_rel(&h->chunks[chunk].word, &word,
                          wh_chunk_word(wh_chunk_class(word), h->me, true));
}

static inline void wh_heap_let_go(wh_heap *h, uint32_t chunk, uint32_t kind)
{
    /* pairs: chunk */
    wh_store_release(&h->chunks[chunk].word, wh_chunk_word(kind + 1, h->me, false));
}

/* Make a chunk that we hold one of that kind, if it has no block that is taken. */
static inline bool wh_heap_change(wh_heap *h, uint32_t chunk, uint32_t word, uint32_t kind)
{
    uint32_t class = wh_chunk_class(word);
    if (class == kind + 1)
        return true;
    if (class != 0 && class <= WH_HEAP_CLASSES && wh_heap_count(h, chunk, class - 1) != 0) {
        wh_heap_let_go(h, chunk, class - 1);
        return false;
    }
    /* pairs: chunk - still held: so the class is there before a block of it */
    wh_store_release(&h->chunks[chunk].word, wh_chunk_word(kind + 1, h->me, true));
    return true;
}

/* Take a block for the timer `id` in this chunk, whose word was `word`; its number goes to `note`
 * first. WH_NIL: it has none. */
static inline uint32_t wh_heap_take_in(wh_heap *h, uint32_t chunk, uint32_t word, uint32_t kind,
                                       uint64_t id, wh_au32 *note)
{
    if (!wh_heap_hold(h, chunk, word) || !wh_heap_change(h, chunk, word, kind))
        return WH_NIL;
    uint32_t from = h->at[kind] == chunk + 1 ? h->next[kind] : 0, block = WH_NIL;
    uint32_t index = wh_heap_find(h, chunk, kind, from);
    if (wh_likely(index != WH_NIL)) {
        block = wh_block_word(chunk, index);
        wh_store_relaxed(note, block);
        wh_count(&h->chunks[chunk].taken, 1);
        wh_step();
        wh_store_release(&wh_heap_front(h, chunk)->ids[index], id); /* pairs: block */
        h->at[kind] = chunk + 1;
        h->next[kind] = (uint16_t)(index + 1);
    } else {
        (void)wh_heap_count(h, chunk, kind);
    }
    wh_heap_let_go(h, chunk, kind);
    return block;
}

/* Which chunks a search takes. */
enum wh_heap_search {
    WH_HEAP_OWN, /* of the same kind, used last by this worker or by a dead one; or without kind */
    WH_HEAP_ALL, /* those of other workers, too; and empty ones of another kind */
    WH_HEAP_COUNT, /* those that look full or not empty, too */
};

static inline bool wh_heap_suits(const wh_heap *h, const wh_chunk *c, uint32_t word, uint32_t kind,
                                 enum wh_heap_search search)
{
    uint32_t class = wh_chunk_class(word), worker = wh_chunk_worker(word), taken = wh_heap_taken(c);
    if (wh_chunk_is_held(word))
        return false;
    if (class == 0 || search == WH_HEAP_COUNT)
        return true;
    if (class == kind + 1)
        return taken < wh_heap_counts[kind] &&
               (search == WH_HEAP_ALL || worker == h->me || worker == 0);
    return search == WH_HEAP_ALL && taken == 0;
}

/* Take a block in one of the chunks that were used before, or WH_NIL. */
static wh_seldom uint32_t wh_heap_search(wh_heap *h, uint32_t kind, uint64_t id, wh_au32 *note,
                                         enum wh_heap_search search)
{
    uint32_t end = wh_heap_end(h), block;
    for (uint32_t looked = 0; looked < end; looked++) {
        uint32_t chunk = h->look < end ? h->look : 0;
        uint32_t word = wh_load_relaxed(&h->chunks[chunk].word);
        if (wh_heap_suits(h, &h->chunks[chunk], word, kind, search) &&
            (block = wh_heap_take_in(h, chunk, word, kind, id, note)) != WH_NIL)
            return block;
        h->look = chunk + 1;
    }
    return WH_NIL;
}

/* Take a block in a chunk that nobody has used yet, or WH_NIL. */
static wh_seldom uint32_t wh_heap_fresh(wh_heap *h, uint32_t kind, uint64_t id, wh_au32 *note)
{
    uint32_t backed = wh_load_acquire(h->backed), block; /* pairs: heap-backed */
    uint32_t chunk = wh_load_seq(h->top); /* pairs: heap-top */
    backed = backed < h->count ? backed : h->count;
    while (chunk < backed)
        /* pairs: heap-top - before a block of it is: who finds the block finds the chunk there */
        if (wh_cas_seq(h->top, &chunk, chunk + 1)) {
            wh_populate(wh_heap_front(h, chunk), WH_CHUNK_BYTES);
            if ((block = wh_heap_take_in(h, chunk, 0, kind, id, note)) != WH_NIL)
                return block;
            chunk++; /* another worker was there before us */
        }
    return WH_NIL;
}

/* After deaths, chunks may look fuller than they are: look into each. */
static wh_seldom uint32_t wh_heap_search_all(wh_heap *h, uint32_t kind, uint64_t id, wh_au32 *note)
{
    uint64_t deaths = wh_load_seq(h->deaths) + 1; /* pairs: freed */
    uint32_t block = wh_heap_search(h, kind, id, note, WH_HEAP_ALL);
    if (block == WH_NIL && h->counted != deaths &&
        (block = wh_heap_search(h, kind, id, note, WH_HEAP_COUNT)) == WH_NIL)
        h->counted = deaths;
    return block;
}

/* Take a block of that kind. WH_NIL: there is none in the memory that the heap has now. */
static inline uint32_t wh_heap_take(wh_heap *h, uint32_t kind, uint64_t id, wh_au32 *note)
{
    uint32_t chunk = h->at[kind] - 1, block;
    if (wh_likely(h->at[kind] != 0)) {
        uint32_t word = wh_load_relaxed(&h->chunks[chunk].word);
        if (wh_likely(wh_chunk_class(word) == kind + 1 && !wh_chunk_is_held(word) &&
                      wh_heap_taken(&h->chunks[chunk]) < wh_heap_counts[kind]) &&
            wh_likely((block = wh_heap_take_in(h, chunk, word, kind, id, note)) != WH_NIL))
            return block;
    }
    if ((block = wh_heap_search(h, kind, id, note, WH_HEAP_OWN)) == WH_NIL &&
        (block = wh_heap_fresh(h, kind, id, note)) == WH_NIL)
        block = wh_heap_search_all(h, kind, id, note);
    return block;
}

/* -- a payload --------------------------------------------------------------------------------- */

/* Write the payload of the timer that is armed next in a slot that this worker holds. False: there
 * is no room, and nothing is left of it. */
static wh_apart bool wh_heap_write(wh_heap *h, uint64_t id, const char *from, uint32_t size)
{
    wh_au32 *note = &h->blocks[wh_id_slot(id)].block;
    do {
        uint32_t piece = size < WH_CHUNK_DATA ? size : WH_CHUNK_DATA, room = 0;
        uint32_t block = wh_heap_take(h, wh_heap_class(piece), id, note);
        char *data = block == WH_NIL ? NULL : wh_heap_data(h, block, &room);
        if (data == NULL || piece > room) {
            wh_heap_end_of(h, id);
            return false;
        }
        note = wh_heap_size_word(h, block);
        wh_store_relaxed(note, piece);
        wh_payload_write(data, from, piece);
        from += piece;
        size -= piece;
    } while (size);
    return true;
}

/* The size of the payload of the timer `id`, in the block and those behind it; UINT32_MAX: it is
 * not there. */
static inline uint32_t wh_heap_size(const wh_heap *h, uint32_t block, uint64_t id)
{
    uint64_t size = 0;
    for (uint32_t piece = 0; piece < WH_MAX_PIECES && wh_heap_has(h, block, id); piece++) {
        block = wh_load_relaxed(wh_heap_size_word(h, block));
        if (!wh_block_is_set(block))
            return block <= WH_CHUNK_DATA ? (uint32_t)(size + block) : UINT32_MAX;
        size += WH_CHUNK_DATA;
    }
    return UINT32_MAX;
}

/* Copy `size` bytes of it. False: it is not there any more. */
static inline bool wh_heap_read(const wh_heap *h, uint32_t block, uint64_t id, char *to,
                                uint32_t size)
{
    while (wh_heap_has(h, block, id)) {
        uint32_t room = 0, piece = size < WH_CHUNK_DATA ? size : WH_CHUNK_DATA;
        char *data = wh_heap_data(h, block, &room);
        if (data == NULL || room < piece)
            return false;
        wh_payload_read(to, data, piece);
        to += piece;
        size -= piece;
        if (size == 0)
            return true;
        block = wh_load_relaxed(wh_heap_size_word(h, block));
    }
    return false;
}

/* -- for inspectors ---------------------------------------------------------------------------- */

/* The bytes of all payloads in the heap. */
static wh_apart uint64_t wh_heap_bytes(const wh_heap *h)
{
    uint64_t bytes = 0;
    for (uint32_t chunk = 0, end = wh_heap_end(h); chunk < end; chunk++) {
        wh_chunk_front *front = wh_heap_front(h, chunk);
        uint32_t kind = wh_chunk_class(wh_load_relaxed(&h->chunks[chunk].word)) - 1;
        for (uint32_t i = 0; kind < WH_HEAP_CLASSES && i < wh_heap_counts[kind]; i++) {
            uint32_t size = wh_load_relaxed(&front->sizes[i]), most = wh_heap_room(kind);
            if (wh_load_relaxed(&front->ids[i]) != 0)
                bytes += size < most ? size : most; /* a whole chunk, if there is another block */
        }
    }
    return bytes;
}

/* -- for the clock ----------------------------------------------------------------------------- */

/* Nobody holds or prefers a chunk that the worker of `row`, which is dead, held or used. */
static wh_apart void wh_heap_bury(wh_heap *h, uint32_t row)
{
    for (uint32_t chunk = 0, end = wh_heap_end(h); chunk < end; chunk++) {
        uint32_t word = wh_load_acquire(&h->chunks[chunk].word); /* pairs: chunk */
        if (wh_chunk_worker(word) == row + 1)
            /* pairs: chunk - unless a living worker takes it just now */
            (void)wh_cas_acq_rel(&h->chunks[chunk].word, &word,
                                 wh_chunk_word(wh_chunk_class(word), 0, false));
    }
}

#endif
