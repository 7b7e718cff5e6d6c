/* Layout: every byte that wheeld's processes share, declared once.
 *
 * The structs, the static asserts, the numpy dtypes, the tables of shm_layout.md and the
 * fingerprint in each segment's head all derive from the field lists below.
 *
 *   F(type, name, meaning, writer, readers, order)   a field
 *   N(...)                                           the same, at the start of a 128-byte line
 *   A(type, name, count, ...)                        an array field
 *
 * Invariants
 *  1. A field has exactly one writer, named here. State words, slab owners, the count of freed
 *     slabs and the words of the watch and pools segments that say so are the exceptions: they
 *     change by read-modify-write only.
 *  2. Words of different writers never share a 128-byte line (two adjacent cache lines are
 *     fetched together). A slab's states and slots fill whole lines, so no two owners share one.
 *  3. `creator` writes before the segment's magic is published and never after.
 */
#ifndef WHEELD_LAYOUT_H
#define WHEELD_LAYOUT_H

#include <stddef.h>

#include "wheeld/shared/atomics.h"
#include "wheeld/shared/layout_sharing.h" /* the field lists of the watch and pools segments */
#include "wheeld/shared/layout_trace.h"   /* those of the trace segment */
#include "wheeld/shared/packing.h"        /* the meaning of the bits in its words */

#define WH_LAYOUT_VERSION 13u
#define WH_MAGIC 0x31646c6565687700ull /* "\0wheeld1"; the low byte is the segment's kind */
#define WH_LINE 128

enum wh_kind {
    WH_KIND_WHEEL = 1,
    WH_KIND_SLOTS,
    WH_KIND_REGISTRY,
    WH_KIND_WORKER,
    WH_KIND_WATCH,
    WH_KIND_POOLS,
    WH_KIND_TRACE,
    WH_KIND_KEYS
};

/* clang-format off */
#define WH_HEAD_FIELDS(N, F, A)                                                                    \
    F(wh_au64, magic, "WH_MAGIC | kind", "creator", "all", "release, written last; pairs: ready")  \
    F(uint32_t, layout_version, "WH_LAYOUT_VERSION", "creator", "all", "before magic")             \
    F(uint32_t, head_pad, "zero", "nobody", "nobody", "-")                                         \
    F(uint64_t, bytes, "size of the segment, bytes", "creator", "all", "before magic")             \
    F(uint64_t, token, "random, the same in all segments of one daemon", "creator", "all",         \
      "before magic")                                                                              \
    F(uint64_t, fingerprint, "hash of all that two builds must agree on", "creator", "all",        \
      "before magic")

#define WH_WHEEL_FIELDS(N, F, A)                                                                   \
    N(int64_t, tick_ns, "unit of the wheel, ns", "creator", "all", "before magic")                 \
    F(uint32_t, wheel_bits, "log2 of the buckets per level", "creator", "all", "before magic")     \
    F(uint32_t, levels, "levels", "creator", "all", "before magic")                                \
    F(uint32_t, capacity, "slots", "creator", "all", "before magic")                               \
    F(uint32_t, slab_count, "slabs of 64 slots", "creator", "all", "before magic")                 \
    F(uint32_t, max_workers, "rows of the worker table", "creator", "all", "before magic")         \
    F(uint32_t, payload_bytes, "payload of a slot, bytes", "creator", "all", "before magic")       \
    F(uint32_t, sub_bits, "log2 of a submission ring's entries", "creator", "all", "before magic") \
    F(uint32_t, comp_bits, "log2 of a completion ring's entries", "creator", "all",                \
      "before magic")                                                                              \
    F(uint32_t, ret_bits, "log2 of a return ring's entries", "creator", "all", "before magic")     \
    F(uint32_t, shards, "shards of the wheel, a power of two", "creator", "all", "before magic")   \
    F(uint32_t, virtual_clock, "1: time moves by advance only", "creator", "all", "before magic")  \
    F(uint32_t, lists, "buckets of all shards + 3 * max_workers", "creator", "all",                \
      "before magic")                                                                              \
    F(uint32_t, homes, "slabs at the end, one per row or none: for a worker that holds no other",  \
      "creator", "workers", "before magic")                                                        \
    F(uint32_t, heap_chunks, "chunks of the payload heap", "creator", "all", "before magic")       \
    F(uint32_t, max_payload, "largest payload, bytes", "creator", "workers", "before magic")       \
    F(uint32_t, detached_most, "detached timers that may be pending", "creator", "workers",        \
      "before magic")                                                                              \
    F(uint64_t, ports_off, "offset of the clock's ports, one per worker", "creator", "all",        \
      "before magic")                                                                              \
    F(uint64_t, histograms_off, "offset of the histograms: of the clock, then one per worker",     \
      "creator", "inspectors", "before magic")                                                     \
    F(uint64_t, shards_off, "offset of the shards", "creator", "clock", "before magic")            \
    F(uint64_t, summary_off, "offset of the summary words, one per level of each shard",           \
      "creator", "clock", "before magic")                                                          \
    F(uint64_t, occupancy_off, "offset of the occupancy words", "creator", "clock",                \
      "before magic")                                                                              \
    F(uint64_t, links_off, "offset of the links: capacity + lists", "creator", "clock",            \
      "before magic")                                                                              \
    F(uint64_t, undo_off, "offset of the undo entries", "creator", "clock", "before magic")        \
    F(uint64_t, holders_off, "offset of the holders, one per slot", "creator", "all",              \
      "before magic")                                                                              \
    N(wh_ai64, sleep_until,                                                                        \
      "ring the doorbell for a deadline below this, ns; INT64_MIN while awake", "clock",           \
      "workers", "seq_cst; pairs: sleep")                                                          \
    F(wh_au64, sleep_seq, "counts up at each wake-up", "clock", "workers",                         \
      "seq_cst; pairs: bell-once")                                                                 \
    F(wh_ai64, virtual_now, "now of a virtual clock, ns", "clock", "workers",                      \
      "release; pairs: virtual-now")                                                               \
    F(wh_au32, daemon_state, "0 starting, 1 running, 2 stopping", "clock", "all",                  \
      "release; pairs: daemon-state")                                                              \
    F(wh_au64, offered,                                                                            \
      "a bit per group: ring the doorbell before a member of it sleeps", "clock", "workers",       \
      "seq_cst; pairs: offered")                                                                   \
    F(wh_au32, backed, "slabs from the first on that have memory; those of `homes` have it always", \
      "clock", "workers, inspectors", "release; pairs: backed")                                    \
    F(wh_au32, heap_backed, "chunks of the payload heap, from the first on, that have memory",     \
      "clock", "workers, inspectors", "release; pairs: heap-backed")                               \
    F(wh_au64, heap_answered, "the last `heap_asked` that was dealt with", "clock", "workers",     \
      "release, after heap_backed; pairs: heap-asked")                                             \
    N(wh_au64, epoch, "incarnations of the clock", "clock", "all", "relaxed")                      \
    F(wh_ai64, heartbeat, "when the last pass began, ns", "clock", "supervisor", "relaxed")        \
    F(wh_au64, tick, "current tick of the shard that is furthest behind", "clock", "inspectors",   \
      "relaxed")                                                                                   \
    F(wh_au64, linked, "timers linked in buckets", "clock", "inspectors", "relaxed")               \
    F(wh_au64, fired, "expirations delivered, ticks of periodic timers included", "clock",         \
      "inspectors", "relaxed")                                                                     \
    F(wh_au64, returned, "slots given back after a cancel or a loan", "clock", "inspectors",       \
      "relaxed")                                                                                   \
    F(wh_au64, relinked, "timers found due later than linked", "clock", "inspectors", "relaxed")   \
    F(wh_au64, cascaded, "timers moved down a level", "clock", "inspectors", "relaxed")            \
    F(wh_au64, passes, "passes of the clock's loop", "clock", "inspectors", "relaxed")             \
    F(wh_au64, wakes, "times that the clock slept and woke", "clock", "inspectors", "relaxed")     \
    F(wh_au64, bells, "doorbells that the clock rang", "clock", "inspectors", "relaxed")           \
    F(wh_au64, dropped, "timers that ended with their dead owner: armed, or expired and unread",  \
      "clock", "inspectors",                                                                       \
      "relaxed")                                                                                   \
    F(wh_au64, redirected, "expirations whose target was gone", "clock", "inspectors", "relaxed")  \
    F(wh_au64, wake_late_ns, "longest oversleep of the clock, or of timers without a clock, ns", "clock", "inspectors",          \
      "relaxed")                                                                                   \
    F(wh_au64, undo_used, "undo entries that count", "clock", "the next clock", "relaxed")         \
    F(wh_au64, recovered, "completions that clocks found unpublished after a death", "clock",      \
      "inspectors", "relaxed")                                                                     \
    F(wh_au64, inherited, "slots handed on by a worker's death", "clock", "inspectors", "relaxed") \
    F(wh_au64, stock, "free slots in the clock's hands", "clock", "inspectors", "relaxed")         \
    F(wh_au64, split, "slabs whose slots are held one by one", "clock", "inspectors", "relaxed")   \
    F(wh_au64, handed, "slots handed to workers that asked", "clock", "inspectors", "relaxed")     \
    F(wh_au64, detached, "detached timers that the clock has met and that have not ended", "clock", \
      "workers", "relaxed; before sub_head")                                                       \
    F(wh_au64, keeper, "1 + the row that keeps detached timers when their worker is gone; 0: none", \
      "clock", "workers, inspectors", "relaxed")

/* The holder of each slot of a split slab. Clients map it read-only. */
#define WH_HOLDER_FIELDS(N, F, A)                                                                  \
    F(wh_au32, holder,                                                                             \
      "HOLDER word. Counts if the slab's owner is WH_SPLIT",  \
      "clock", "all", "relaxed; before the CAS of the owner, or before ret_tail")

/* One port per worker in the wheel segment: what the clock tells that worker. */
#define WH_PORT_FIELDS(N, F, A)                                                                    \
    N(wh_au64, sub_head, "submissions consumed", "clock", "worker", "release; pairs: sub-head")    \
    F(wh_au64, comp_tail, "completions published", "clock", "worker",                              \
      "seq_cst; pairs: comp-tail, worker-wait")                                                    \
    F(wh_au64, ret_tail, "slots given back", "clock", "worker", "release; pairs: ret-tail")        \
    F(wh_au64, backlog, "1: ring the doorbell after making room", "clock", "worker",               \
      "seq_cst; pairs: backlog")                                                                   \
    F(wh_au64, incarnation, "incarnation attached, 0: none", "clock", "supervisor", "relaxed")     \
    F(wh_au64, fired, "expirations put into its ring", "clock", "inspectors", "relaxed")           \
    F(wh_au64, returned, "slots put into its return ring", "clock", "inspectors", "relaxed")       \
    F(wh_au64, dropped, "timers that ended with it: armed, or expired and unread", "clock",        \
      "inspectors", "relaxed")                                                                     \
    F(wh_au64, offences, "submissions that an honest client never makes", "clock", "inspectors",   \
      "relaxed")                                                                                   \
    F(wh_au64, groups, "what it is a member of, a bit per group", "clock", "worker", "relaxed")    \
    F(wh_au64, answered, "the last `asked` that was dealt with", "clock", "worker",                \
      "release, after ret_tail; pairs: asked")

/* A wheel for some of the workers: those whose row is the shard's number, modulo the shards. */
#define WH_SHARD_FIELDS(N, F, A)                                                                   \
    F(uint64_t, tick, "current tick", "clock", "inspectors", "-")                                  \
    F(uint64_t, linked, "timers in its buckets", "clock", "inspectors", "-")                       \
    F(uint32_t, draining, "bucket of an upper level that is being emptied, or 0xffffffff",         \
      "clock", "inspectors", "-")                                                                  \
    F(uint32_t, shard_pad, "zero", "nobody", "nobody", "-")

/* One link per slot, then one sentinel per list. Clients map it read-only. */
#define WH_LINK_FIELDS(N, F, A)                                                                    \
    F(uint32_t, next, "next node of the list", "clock", "inspectors", "-")                         \
    F(uint32_t, prev, "previous node of the list", "clock", "inspectors", "-")                     \
    F(uint32_t, list, "bucket or worker list it is in, or 0xffffffff", "clock", "inspectors", "-") \
    F(uint32_t, gen, "generation of the slot that this record is about", "clock", "inspectors",    \
      "-")                                                                                         \
    F(uint64_t, completion, "COMPLETION word", "clock",       \
      "inspectors", "-")                                                                           \
    F(int64_t, due,                                                                                \
      "one-shot: deadline it was linked or fired with; periodic: last due time that fired; or "    \
      "INT64_MIN; ns",                                                                             \
      "clock", "inspectors", "-")

/* The words that a tick of a periodic timer overwrote; the next clock needs them if this one dies
 * before the tick is published. Emptied at each publication. */
#define WH_UNDO_FIELDS(N, F, A)                                                                    \
    F(uint32_t, slot, "a periodic timer", "clock", "the next clock", "before undo_used")           \
    F(uint32_t, gen, "its generation", "clock", "the next clock", "before undo_used")              \
    F(int64_t, due, "link.due before the tick, ns", "clock", "the next clock", "before undo_used")

#define WH_SLOTS_FIELDS(N, F, A)                                                                   \
    N(uint64_t, owners_off, "offset of the slab owners", "creator", "all", "before magic")         \
    F(uint64_t, states_off, "offset of the state words", "creator", "all", "before magic")         \
    F(uint64_t, slots_off, "offset of the slots", "creator", "all", "before magic")                \
    F(uint64_t, payloads_off, "offset of the payloads", "creator", "all", "before magic")          \
    F(uint64_t, blocks_off, "offset of the first blocks of payloads in the heap, one per slot",    \
      "creator", "all", "before magic")                                                            \
    F(uint64_t, chunks_off, "offset of the table of the heap's chunks", "creator", "all",          \
      "before magic")                                                                              \
    F(uint64_t, heap_off, "offset of the heap's chunks, 64 KiB each", "creator", "all",            \
      "before magic")                                                                              \
    N(wh_au64, freed, "slabs given back so far, and deaths of workers",                            \
      "whoever gives one back (add)", "workers", "seq_cst RMW; pairs: freed")                        \
    N(wh_au32, heap_top, "chunks, from the first on, that were ever used", "workers by compare-and-swap",   \
      "all", "seq_cst CAS; pairs: heap-top")                                                              \
    F(wh_au64, heap_asked, "ASK word: how many chunks are to have memory",                         \
      "workers by compare-and-swap", "clock", "seq_cst CAS; pairs: heap-asked")

/* One word per slab. */
#define WH_OWNER_FIELDS(N, F, A)                                                                   \
    F(wh_au64, owner,                                                                              \
      "OWNER word; 0: nobody",                                                                                 \
      "worker (0 -> itself -> parked -> itself, or 0), clock (parked -> split -> 0; those of the " \
      "dead), by compare-and-swap",                                                                \
      "all", "acq_rel CAS, release; pairs: slab")

/* One word per slot, apart from its other fields: a cancel touches nothing else, and eight of them
 * share a cache line (docs/decisions/0002). */
#define WH_STATE_FIELDS(N, F, A)                                                                   \
    F(wh_au64, state, "STATE word",            \
      "owner (arm); any worker and the clock by compare-and-swap", "all",                          \
      "release, acq_rel CAS; pairs: arm, cancel, extend, fire, offer")

/* The first 16 bytes change together, by one compare-and-swap, when a timer is moved. */
#define WH_SLOT_FIELDS(N, F, A)                                                                    \
    F(wh_ai64, deadline, "due time on the slot's clock, ns",                                       \
      "owner (arm); any worker by compare-and-swap of 16 bytes", "clock",                          \
      "before arm; acq_rel CAS before that of the version; pairs: extend")                         \
    F(wh_au32, target, "TARGET word; 0: owner", "owner", "clock", "before arm")                    \
    F(wh_au16, payload_size, "used bytes of the payload; 0xffff: it is in the heap", "owner",      \
      "clock, target", "before arm")                                                               \
    F(wh_au16, flags, "FLAGS word",                                                                \
      "owner; MOVES: clock", "clock, target", "before arm; MOVES before the CAS of a tick")        \
    F(wh_ai64, interval, "INTERVAL word",                                                          \
      "owner (arm); any worker by compare-and-swap", "clock",                                      \
      "before arm; acq_rel CAS before that of the version; pairs: extend")                         \
    F(wh_au64, cookie, "the user's 64 bits", "owner", "clock", "before arm")

/* Where a slot's payload begins in the heap: heap.h. Counts while the block names the slot. */
#define WH_BLOCK_FIELDS(N, F, A)                                                                   \
    F(wh_au32, block, "BLOCK word; 0: none", "owner", "all", "before the block's id, before arm")

#define WH_REGISTRY_FIELDS(N, F, A)                                                                \
    N(uint64_t, rows_off, "offset of the worker table", "creator", "all", "before magic")          \
    F(uint64_t, row_count, "rows of the worker table", "creator", "all", "before magic")           \
    F(uint64_t, groups_off, "offset of the group table, 64 entries", "creator", "all",             \
      "before magic")                                                                              \
    A(char, boot_id, 40, "kernel's boot id", "creator", "all", "before magic")                     \
    N(uint64_t, pid_ns, "inode of the daemon's pid namespace: what the rows' pids mean", "supervisor",  \
      "supervisor", "before any row")

#define WH_ROW_FIELDS(N, F, A)                                                                     \
    N(wh_au32, state,                                                                              \
      "0 free, 1 attaching, 2 active, 3 dying, 4 kept; but for 2 its calls are refused",           \
      "supervisor", "all", "release, after the other fields; pairs: row")                          \
    F(uint32_t, pid, "process id", "supervisor", "all", "before state")                            \
    F(uint32_t, uid, "user id", "supervisor", "all", "before state")                               \
    F(uint32_t, on_death, "0 drop, 1 keep, 2 reroute", "supervisor", "all", "before state")        \
    F(wh_au64, incarnation, "counts the tenants of all rows", "supervisor", "all",                 \
      "before state")                                                                              \
    F(uint64_t, start_time, "of the process, clock ticks since boot; hidden: the inode of its pidfd, bit 63", "supervisor", "all",         \
      "before state")                                                                              \
    F(uint64_t, groups, "bit per group", "supervisor", "all", "before state")                      \
    F(uint64_t, pid_ns, "inode of the process's pid namespace", "supervisor", "all",               \
      "before state")                                                                              \
    A(char, name, 64, "worker's name, UTF-8, zero-terminated", "supervisor", "all",                \
      "before state")                                                                              \
    F(uint32_t, named, "1: the user chose the name, so a successor can have it", "supervisor",     \
      "all", "before state")                                                                       \
    F(uint32_t, segment_ino, "inode of its segment, its lower 32 bits, which no link to another can have", \
      "supervisor", "all", "before state")

/* A number gets another name only when the group has no worker, and no timer is for it that is
 * armed or not delivered yet. A worker that had looked its name up before arms a timer with the old
 * `uses`, which goes to its owner. */
#define WH_GROUP_FIELDS(N, F, A)                                                                   \
    F(wh_au32, used, "GROUP word", "supervisor", "all",       \
      "release, after the name; pairs: group")                                                     \
    A(char, name, 60, "UTF-8, zero-terminated", "supervisor", "all", "before used")

#define WH_WORKER_FIELDS(N, F, A)                                                                  \
    N(uint64_t, sub_off, "offset of the submission ring (u64 entries)", "creator", "worker",       \
      "before magic")                                                                              \
    F(uint64_t, comp_off, "offset of the completion ring", "creator", "worker", "before magic")    \
    F(uint64_t, ret_off, "offset of the return ring (u32 slots)", "creator", "worker",             \
      "before magic")                                                                              \
    F(uint64_t, histograms_off, "offset of its histograms", "creator", "inspectors", "before magic")                                                                              \
    N(wh_au64, sub_tail, "submissions published", "worker", "clock",                               \
      "seq_cst; pairs: sub-tail, sleep, bell-once")                                                \
    F(wh_au64, asked, "ASK word", "worker", "clock",    \
      "seq_cst; pairs: asked")                                                                     \
    F(wh_au64, visibility, "how long it may hold an event for a group, ns; 0: as long as it lives", \
      "worker", "clock", "relaxed")                                                                \
    N(wh_au64, comp_head, "completions consumed", "worker", "clock",                               \
      "seq_cst; pairs: comp-head, backlog")                                                        \
    F(wh_au64, ret_head, "returned slots taken up", "worker", "clock",                             \
      "seq_cst; pairs: ret-head, backlog")                                                         \
    F(wh_au64, wait_seq, "odd: the worker waits for a byte in its FIFO", "worker", "clock",        \
      "seq_cst; pairs: worker-wait")                                                               \
    F(wh_au64, replacing, "id of the timer that it has taken a key from, and ends now; 0: none",   \
      "worker", "clock", "seq_cst; pairs: replace")                                                \
    F(wh_au64, replacer, "id of the timer that is to get the key of `replacing`, if that one's key stays until its acknowledgement", \
      "worker", "clock", "relaxed")                                                                \
    F(wh_au64, receives, "1: it has begun to receive, and is a member of its groups from then on", \
      "worker", "clock, supervisor", "relaxed")                                                    \
    N(wh_au64, scheduled, "timers armed", "worker", "inspectors", "relaxed")                       \
    F(wh_au64, cancelled, "cancels won", "worker", "inspectors", "relaxed")                        \
    F(wh_au64, rescheduled, "reschedules won", "worker", "inspectors", "relaxed")                  \
    F(wh_au64, received, "expirations handed to the user", "worker", "inspectors", "relaxed")      \
    F(wh_au64, bells, "doorbells rung", "worker", "inspectors", "relaxed")                         \
    F(wh_au64, fulls, "calls refused with WheelFull", "worker", "inspectors", "relaxed")           \
    F(wh_au64, disbelieved, "records of its rings that could not be so, and were passed over",     \
      "worker", "inspectors", "relaxed")                                                           \
    F(wh_au64, goodbye, "1: no client uses it: not yet (set before there is one), or not any more", \
      "worker", "supervisor", "relaxed")

/* Written by the clock into the worker's ring; the clock never reads it back. */
#define WH_COMPLETION_FIELDS(N, F, A)                                                              \
    F(uint64_t, id, "ID word", "clock", "worker", "before comp_tail") \
    F(uint64_t, cookie, "slot.cookie", "clock", "worker", "before comp_tail")                      \
    F(int64_t, deadline, "what was due, on the timer's clock, ns", "clock", "worker",              \
      "before comp_tail")                                                                          \
    F(int64_t, fired, "when, on the timer's clock, ns", "clock", "worker", "before comp_tail")     \
    F(uint32_t, missed, "whole intervals skipped", "clock", "worker", "before comp_tail")          \
    F(uint16_t, payload_size, "slot.payload_size", "clock", "worker", "before comp_tail")          \
    F(uint16_t, flags, "slot.flags", "clock", "worker", "before comp_tail")

#define WH_FIELD_N(type, name, ...) _Alignas(WH_LINE) type name;
#define WH_FIELD_F(type, name, ...) type name;
#define WH_FIELD_A(type, name, count, ...) type name[count];
#define WH_DECLARE(list) list(WH_FIELD_N, WH_FIELD_F, WH_FIELD_A)

typedef struct wh_head { WH_DECLARE(WH_HEAD_FIELDS) } wh_head;
typedef struct wh_wheel_seg { wh_head head; WH_DECLARE(WH_WHEEL_FIELDS) } wh_wheel_seg;
typedef struct wh_port { WH_DECLARE(WH_PORT_FIELDS) } wh_port;
typedef struct wh_shard { WH_DECLARE(WH_SHARD_FIELDS) } wh_shard;
typedef struct wh_link { WH_DECLARE(WH_LINK_FIELDS) } wh_link;
typedef struct wh_holder { WH_DECLARE(WH_HOLDER_FIELDS) } wh_holder;
typedef struct wh_undo { WH_DECLARE(WH_UNDO_FIELDS) } wh_undo;
typedef struct wh_slots_seg { wh_head head; WH_DECLARE(WH_SLOTS_FIELDS) } wh_slots_seg;
typedef struct wh_owner { WH_DECLARE(WH_OWNER_FIELDS) } wh_owner;
typedef struct wh_state_word { WH_DECLARE(WH_STATE_FIELDS) } wh_state_word;
typedef struct wh_slot { WH_DECLARE(WH_SLOT_FIELDS) } wh_slot;
typedef struct wh_registry_seg { wh_head head; WH_DECLARE(WH_REGISTRY_FIELDS) } wh_registry_seg;
typedef struct wh_row { WH_DECLARE(WH_ROW_FIELDS) } wh_row;
typedef struct wh_group { WH_DECLARE(WH_GROUP_FIELDS) } wh_group;
typedef struct wh_worker_seg { wh_head head; WH_DECLARE(WH_WORKER_FIELDS) } wh_worker_seg;
typedef struct wh_completion { WH_DECLARE(WH_COMPLETION_FIELDS) } wh_completion;
typedef struct wh_histogram { WH_DECLARE(WH_HISTOGRAM_FIELDS) } wh_histogram;
typedef struct wh_watch_seg { wh_head head; WH_DECLARE(WH_WATCH_FIELDS) } wh_watch_seg;
typedef struct wh_watchers { WH_DECLARE(WH_WATCHERS_FIELDS) } wh_watchers;
typedef struct wh_watch_row { WH_DECLARE(WH_WATCH_ROW_FIELDS) } wh_watch_row;
typedef struct wh_keys_seg { wh_head head; WH_DECLARE(WH_KEYS_FIELDS) } wh_keys_seg;
typedef struct wh_key_row { WH_DECLARE(WH_KEY_ROW_FIELDS) } wh_key_row;
typedef struct wh_leases { WH_DECLARE(WH_LEASES_FIELDS) } wh_leases;
typedef struct wh_lease_place { WH_DECLARE(WH_LEASE_PLACE_FIELDS) } wh_lease_place;
typedef struct wh_key_room { WH_DECLARE(WH_KEY_ROOM_FIELDS) } wh_key_room;
typedef struct wh_word_set { WH_DECLARE(WH_WORD_SET_FIELDS) } wh_word_set;
typedef struct wh_size { WH_DECLARE(WH_SIZE_FIELDS) } wh_size;
typedef struct wh_pools_seg { wh_head head; WH_DECLARE(WH_POOLS_FIELDS) } wh_pools_seg;
typedef struct wh_pool { WH_DECLARE(WH_POOL_FIELDS) } wh_pool;
typedef struct wh_waiters { WH_DECLARE(WH_WAITERS_FIELDS) } wh_waiters;
typedef struct wh_ledger { WH_DECLARE(WH_LEDGER_FIELDS) } wh_ledger;
typedef struct wh_block { WH_DECLARE(WH_BLOCK_FIELDS) } wh_block;
typedef struct wh_chunk { WH_DECLARE(WH_CHUNK_FIELDS) } wh_chunk;
typedef struct wh_chunk_front { WH_DECLARE(WH_CHUNK_FRONT_FIELDS) } wh_chunk_front;
typedef struct wh_trace_seg { wh_head head; WH_DECLARE(WH_TRACE_FIELDS) } wh_trace_seg;
typedef struct wh_traced { WH_DECLARE(WH_TRACED_FIELDS) } wh_traced;
typedef struct wh_trace_record { WH_DECLARE(WH_TRACE_RECORD_FIELDS) } wh_trace_record;
/* clang-format on */

/* name of the struct, its type, its field list */
#define WH_STRUCTS(S)                                                                              \
    S(head, wh_head, WH_HEAD_FIELDS)                                                               \
    S(wheel, wh_wheel_seg, WH_WHEEL_FIELDS)                                                        \
    S(port, wh_port, WH_PORT_FIELDS)                                                               \
    S(shard, wh_shard, WH_SHARD_FIELDS)                                                            \
    S(link, wh_link, WH_LINK_FIELDS)                                                               \
    S(holder, wh_holder, WH_HOLDER_FIELDS)                                                         \
    S(undo, wh_undo, WH_UNDO_FIELDS)                                                               \
    S(slots, wh_slots_seg, WH_SLOTS_FIELDS)                                                        \
    S(owner, wh_owner, WH_OWNER_FIELDS)                                                            \
    S(state, wh_state_word, WH_STATE_FIELDS)                                                       \
    S(slot, wh_slot, WH_SLOT_FIELDS)                                                               \
    S(registry, wh_registry_seg, WH_REGISTRY_FIELDS)                                               \
    S(row, wh_row, WH_ROW_FIELDS)                                                                  \
    S(group, wh_group, WH_GROUP_FIELDS)                                                            \
    S(worker, wh_worker_seg, WH_WORKER_FIELDS)                                                     \
    S(completion, wh_completion, WH_COMPLETION_FIELDS)                                             \
    S(histogram, wh_histogram, WH_HISTOGRAM_FIELDS)                                                \
    S(watch, wh_watch_seg, WH_WATCH_FIELDS)                                                        \
    S(watchers, wh_watchers, WH_WATCHERS_FIELDS)                                                   \
    S(watch_row, wh_watch_row, WH_WATCH_ROW_FIELDS)                                                \
    S(keys, wh_keys_seg, WH_KEYS_FIELDS)                                                           \
    S(key_row, wh_key_row, WH_KEY_ROW_FIELDS)                                                      \
    S(leases, wh_leases, WH_LEASES_FIELDS)                                                         \
    S(lease_place, wh_lease_place, WH_LEASE_PLACE_FIELDS)                                          \
    S(key_room, wh_key_room, WH_KEY_ROOM_FIELDS)                                                   \
    S(word_set, wh_word_set, WH_WORD_SET_FIELDS)                                                   \
    S(size, wh_size, WH_SIZE_FIELDS)                                                               \
    S(pools, wh_pools_seg, WH_POOLS_FIELDS)                                                        \
    S(pool, wh_pool, WH_POOL_FIELDS)                                                               \
    S(waiters, wh_waiters, WH_WAITERS_FIELDS)                                                      \
    S(ledger, wh_ledger, WH_LEDGER_FIELDS)                                                         \
    S(block, wh_block, WH_BLOCK_FIELDS)                                                            \
    S(chunk, wh_chunk, WH_CHUNK_FIELDS)                                                            \
    S(chunk_front, wh_chunk_front, WH_CHUNK_FRONT_FIELDS)                                          \
    S(trace, wh_trace_seg, WH_TRACE_FIELDS)                                                        \
    S(traced, wh_traced, WH_TRACED_FIELDS)                                                         \
    S(trace_record, wh_trace_record, WH_TRACE_RECORD_FIELDS)

_Static_assert(sizeof(wh_slot) == 32, "two slots share a cache line");
_Static_assert(sizeof(wh_owner) == 8 && sizeof(wh_state_word) == 8, "arrays of plain words");
_Static_assert(sizeof(wh_holder) == 4, "an array of plain words");
_Static_assert(sizeof(wh_link) == 32, "two links share a cache line");
_Static_assert(sizeof(wh_shard) == 24, "the clock's alone, side by side");
_Static_assert(sizeof(wh_port) == WH_LINE, "one port per worker");
_Static_assert(sizeof(wh_completion) == 40, "completions are packed");
_Static_assert(sizeof(wh_row) == WH_LINE, "rows of the worker table keep lines apart");
_Static_assert(sizeof(wh_group) == 64 && sizeof(wh_undo) == 16, "arrays without gaps");
_Static_assert(sizeof(wh_watchers) == 8 && sizeof(wh_waiters) == 8, "arrays of plain words");
_Static_assert(sizeof(wh_watch_row) == 4 * WH_LINE + 32768, "four lines; the marks");
_Static_assert(sizeof(wh_key_row) == 3 * WH_LINE, "three lines per worker");
_Static_assert(sizeof(wh_leases) % WH_LINE == 0 && sizeof(wh_lease_place) == 16, "no gaps");
_Static_assert(sizeof(wh_key_room) == 32, "none is in two lines");
_Static_assert(sizeof(wh_word_set) == 320, "tags, values and checks in lines of their own");
_Static_assert(sizeof(wh_size) == WH_LINE, "one line per purgatory");
_Static_assert(sizeof(wh_pool) == 5 * WH_LINE && sizeof(wh_ledger) == 4 * WH_LINE, "lines apart");
_Static_assert(sizeof(wh_block) == 4 && sizeof(wh_chunk) == 16, "arrays without gaps");
_Static_assert(sizeof(wh_chunk_front) == 6144, "the ids, the words of the blocks");
_Static_assert(sizeof(wh_trace_record) == 64, "a record fills a cache line");
_Static_assert(sizeof(wh_traced) == 16, "four share a cache line");

/* Limits that follow from the widths of fields. */
#define WH_SLAB_BITS 6u
#define WH_SLAB_SLOTS (1u << WH_SLAB_BITS)
#define WH_MAX_CAPACITY ((1u << WH_ID_SLOT_BITS) - (1u << 22)) /* leaves room for the sentinels */
#define WH_MAX_WORKERS ((uint32_t)WH_MOST(TARGET_WORKER) - 1) /* less 0, and a group's */
_Static_assert(64 * 64 > WH_MAX_WORKERS, "a bit in `waiting` for each");
#define WH_MAX_WHEEL_BITS 12u                               /* one summary word covers a level */
#define WH_UNDO_ENTRIES 256u                                /* unpublished ticks at most */
#define WH_GROUPS (1u << WH_TARGET_GROUP_BITS)              /* bits of row.groups */
#define WH_NIL 0xffffffffu
#define WH_WORD_PLACES 16u                    /* in a set */
#define WH_KEY_CLOSED UINT64_MAX /* the word of a timer's key that is being given up */
#define WH_POOLS 16u
#define WH_MAX_POOL_BYTES (1ull << (WH_USED_BYTES_BITS - 1)) /* and one request more fits */
#define WH_MAX_CHUNKS (1u << 22)              /* 256 GiB */
#define WH_MAX_PAYLOAD (1u << 24)
#define WH_IN_HEAP 0xffffu                    /* slot.payload_size */
#define WH_MIN_TRACE_BITS 4u  /* a record of each kind of loss fits beside the event */
#define WH_MAX_TRACE_BITS 28u /* 16 GiB */
#define WH_NO_ROW 0xffffu     /* in a trace record: nobody's row */

#endif
