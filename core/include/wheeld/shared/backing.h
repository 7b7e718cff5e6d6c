/* Backing: memory for slots as they are needed.
 *
 * Idea. A segment is as large as the capacity asks for, and a file with a hole: what is written per
 * slot, but for its state word, has memory only for slabs below `backed`, and for the slabs that
 * are kept for the rows. No worker claims a slab above. When one finds none, and asks, the clock
 * reserves memory for some more. If there is none to be had, the wheel is full at that size; nobody
 * is ended by a signal (SIGBUS) because the file system is full.
 *
 * Most of a firing on slots that lie anywhere is the walk through page tables, which a huge page
 * (2 MiB) has no lower level of. Linux 6.1 makes one of a file in tmpfs when asked (MADV_COLLAPSE):
 * no privilege, mount option or setting is needed, and making one costs less than 512 small pages.
 * Every process that maps the file at an address which is congruent to the offset then has it in
 * its page tables at its first touch.
 *
 * Invariants
 *  1. `backed` only grows, and is stored after the memory is reserved and its links are in no list.
 *  2. Code that reads slots by number reads only slots that somebody owns or owned: below `backed`,
 * or in a row's own slab. Reading elsewhere would take memory, or end the reader.
 *  3. Nothing depends on huge pages: a kernel that refuses leaves small ones, and the same memory.
 *  4. A huge page holds memory for whole 2 MiB of the file. So one is made only while more than
 *     half of the file system is free: in what is left, memory is taken as it is needed, first of
 *     all in the huge pages that are there.
 */
#ifndef WHEELD_BACKING_H
#define WHEELD_BACKING_H

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "wheeld/shared/geometry.h"

/* -- huge pages -------------------------------------------------------------------------------- */

#define WH_HUGE_BYTES (2ull << 20)
#define WH_HUGE_CAPACITY (1u << 17) /* slots from which on a wheel has them: sizing.md */

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; an older one says EINVAL */
#endif

/* Map a file from its beginning, at a multiple of 2 MiB if it is as large. As mmap: MAP_FAILED and
 * errno. */
static inline void *wh_map_file(int fd, uint64_t bytes, int protection, int flags)
{
    uint64_t room = bytes + WH_HUGE_BYTES;
    char *at = MAP_FAILED;
    if (bytes >= WH_HUGE_BYTES && room > bytes)
        at = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return mmap(NULL, bytes, protection, flags, fd, 0);
    uint64_t before = -(uintptr_t)at % WH_HUGE_BYTES, used = before + ((bytes + 4095) & ~4095ull);
    char *found = mmap(at + before, bytes, protection, flags | MAP_FIXED, fd, 0);
    if (found == MAP_FAILED)
        before = room, used = room;
    if (before)
        munmap(at, before);
    if (used < room)
        munmap(at + used, room - used);
    return found;
}

/* Does the file system have room to round up? */
static inline bool wh_half_free(const struct statvfs *room)
{
    return room->f_bavail >= room->f_blocks / 2;
}

/* Make one at `at`, a multiple of 2 MiB in a mapped segment, where some page has memory. False:
 * the kernel refuses. */
static inline bool wh_huge_here(char *at)
{
    struct statvfs room;
    return (uintptr_t)at % WH_HUGE_BYTES == 0 && statvfs("/dev/shm", &room) == 0 &&
           wh_half_free(&room) && madvise(at, WH_HUGE_BYTES, MADV_COLLAPSE) == 0;
}

/* Make huge pages that begin in the `bytes` from `offset` on, until the kernel refuses; the last
 * may reach further. `memory`: where the file of `size` bytes is mapped. */
static inline void wh_make_huge(int fd, char *memory, uint64_t size, uint64_t offset,
                                uint64_t bytes)
{
    struct statvfs room;
    uint64_t at = (offset + WH_HUGE_BYTES - 1) / WH_HUGE_BYTES * WH_HUGE_BYTES;
    for (; at < offset + bytes && at + WH_HUGE_BYTES <= size; at += WH_HUGE_BYTES)
        if ((uintptr_t)memory % WH_HUGE_BYTES || fstatvfs(fd, &room) != 0 || !wh_half_free(&room) ||
            fallocate(fd, 0, (off_t)at, 1) != 0 || /* the kernel makes none of a mere hole */
            madvise(memory + at, WH_HUGE_BYTES, MADV_COLLAPSE) != 0)
            return;
}

/* -- slabs ------------------------------------------------------------------------------------- */

#define WH_BACK_BYTES (1u << 20) /* reserved at a time: a fraction of a millisecond */

/* A part of a segment. */
typedef struct wh_span {
    uint64_t offset, bytes;
} wh_span;

#define WH_SPANS 3 /* in each of both segments, at most */

/* The bytes of the wheel's segment that the slabs from `first` to before `end` need. */
static inline void wh_wheel_spans(const wh_geometry *g, uint32_t first, uint32_t end,
                                  wh_span spans[WH_SPANS])
{
    uint64_t slot = (uint64_t)first << WH_SLAB_BITS, slots = (uint64_t)(end - first)
                                                             << WH_SLAB_BITS;
    spans[0] = (wh_span){g->links_off + slot * sizeof(wh_link), slots * sizeof(wh_link)};
    spans[1] = (wh_span){g->holders_off + slot * sizeof(wh_holder), slots * sizeof(wh_holder)};
    spans[2] = (wh_span){0, 0};
}

/* The same for the slots' segment. */
static inline void wh_slots_spans(const wh_geometry *g, uint32_t payload, uint32_t first,
                                  uint32_t end, wh_span spans[WH_SPANS])
{
    uint64_t slot = (uint64_t)first << WH_SLAB_BITS, slots = (uint64_t)(end - first)
                                                             << WH_SLAB_BITS;
    spans[0] = (wh_span){g->slots_off + slot * sizeof(wh_slot), slots * sizeof(wh_slot)};
    spans[1] = (wh_span){g->payloads_off + slot * payload, slots * payload};
    spans[2] = (wh_span){g->blocks_off + slot * sizeof(wh_block), slots * sizeof(wh_block)};
}

/* The memory that a slab needs in both. */
static inline uint64_t wh_slab_bytes(uint32_t payload)
{
    return WH_SLAB_SLOTS * (sizeof(wh_link) + sizeof(wh_holder) + sizeof(wh_slot) +
                            sizeof(wh_block) + (uint64_t)payload);
}

/* How many slabs to reserve at a time. */
static inline uint32_t wh_back_step(uint32_t payload)
{
    uint64_t slab = wh_slab_bytes(payload);
    return slab < WH_BACK_BYTES ? (uint32_t)(WH_BACK_BYTES / slab) : 1;
}

/* Is there room for this many bytes? The last eighth of the file system is left for workers that
 * connect, whose rings are there too, and for other programs. */
static inline bool wh_room_for(int fd, uint64_t bytes)
{
    struct statvfs room;
    return fd < 0 || fstatvfs(fd, &room) != 0 || room.f_blocks == 0 ||
           (uint64_t)room.f_bavail * room.f_frsize >=
               bytes + (uint64_t)room.f_blocks / 8 * room.f_frsize;
}

/* A segment as who reserves memory for it has it. */
typedef struct wh_growing {
    int fd; /* -1: its memory is already reserved */
    char *memory;
    uint64_t bytes;
    bool huge; /* of huge pages, as far as the kernel has them */
} wh_growing;

/* Reserve them. False: there is no room. */
static inline bool wh_reserve(const wh_growing *g, const wh_span spans[WH_SPANS])
{
    for (int i = 0; g->fd >= 0 && i < WH_SPANS; i++) {
        if (g->huge && spans[i].bytes)
            wh_make_huge(g->fd, g->memory, g->bytes, spans[i].offset, spans[i].bytes);
        while (spans[i].bytes &&
               fallocate(g->fd, 0, (off_t)spans[i].offset, (off_t)spans[i].bytes) != 0)
            if (errno != EINTR)
                return false;
    }
    return true;
}

/* Map the pages that have memory now, so that no hot call pays for a page fault; before Linux 5.14,
 * the first access to each page still does. */
static inline void wh_populate(const void *from, uint64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    uint64_t begin = (uintptr_t)from & ~4095ull;
    if (bytes)
        (void)madvise((void *)begin, (uintptr_t)from + bytes - begin, MADV_POPULATE_WRITE);
#else
    (void)from, (void)bytes;
#endif
}

/* Their memory is reserved: let workers claim the slabs from `first` to before `end`. */
static inline void wh_open_slabs(wh_wheel_seg *seg, wh_link *links, uint32_t first, uint32_t end)
{
    for (uint32_t slot = first << WH_SLAB_BITS; slot < end << WH_SLAB_BITS; slot++)
        links[slot].list = WH_NIL;
    wh_step();
    wh_store_release(&seg->backed, end); /* pairs: backed */
}

#endif
