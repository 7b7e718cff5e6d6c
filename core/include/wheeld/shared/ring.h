/* Rings: single producer, single consumer, positions that run freely.
 *
 * A position is a u64 that only grows; its entry is position & mask. Fullness and emptiness are
 * unsigned differences, so a wrap of the position is nothing special.
 *
 * Invariants
 *  1. tail - head <= size. The producer alone writes tail, the consumer alone head.
 *  2. An entry is written before the tail that covers it is published, and read before the head
 *     that passes it is.
 *  3. Each side keeps its own position in private memory and never reads it back from the shared
 *     word: what the other process could scribble over cannot move it.
 */
#ifndef WHEELD_RING_H
#define WHEELD_RING_H

#include "wheeld/shared/layout.h"

static inline uint64_t wh_ring_used(uint64_t tail, uint64_t head) { return tail - head; }
static inline uint64_t wh_ring_room(uint64_t tail, uint64_t head, uint64_t size)
{
    uint64_t used = tail - head;
    return used < size ? size - used : 0; /* a corrupt head yields no room, never too much */
}

#endif
