/* Heap class: the sizes of blocks in the payload heap. All blocks of a chunk are of one class. */
#ifndef WHEELD_HEAP_CLASS_H
#define WHEELD_HEAP_CLASS_H

#include "wheeld/shared/layout.h"

/* How many blocks a chunk has, by class; from one class to the next a block grows by a half at
 * most. */
static const uint16_t wh_heap_counts[WH_HEAP_CLASSES] = {
    WH_CHUNK_BLOCKS, 464, 309, 232, 154, 116, 77, 58, 38, 29, 19, 14, 10, 7, 5, 4, 3, 2, 1};

/* The bytes of a block of that class, whole words. */
static inline uint32_t wh_heap_room(uint32_t class)
{
    return WH_CHUNK_DATA / wh_heap_counts[class] & ~7u;
}

/* The smallest class of block that holds `size` bytes, a chunk's data at most. */
static inline uint32_t wh_heap_class(uint32_t size)
{
    uint32_t class = 0;
    while (class < WH_HEAP_CLASSES - 1 && wh_heap_room(class) < size)
        class ++;
    return class;
}

#endif
