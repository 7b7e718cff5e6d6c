/* Room: how a call of the binding waits for the clock (room.h), and what it raises if it cannot be
 * done.
 *
 * A wait lets others go on: other threads, and under gevent other greenlets, which may fork. So who
 * waited asks whether the client is still the one that it was before it touches what it holds.
 */

#define HUB_NAP_NS 500000 /* under gevent: a turn of its loop costs more than a nap */

static const char not_drained[] =
    "the clock process has not drained this worker's ring for 5 s; is it "
    "stopped? see `wheeld status`";

/* A nap of a call that waits for the clock. An error is set unless the call goes on. Signals wait,
 * too: what a handler does (a fork!) must not happen while a call holds slots. */
static enum wh_nap worker_nap(wh_client *c)
{
    WorkerObject *w = (WorkerObject *)((char *)c - offsetof(WorkerObject, client));
    uint64_t me = c->me;
    uint32_t forks = w->forks;
    w->inside++;
    int napped = worker_nap_in_hub(w, HUB_NAP_NS);
    if (napped == 0) {
        Py_BEGIN_ALLOW_THREADS wh_thread_nap(c);
        Py_END_ALLOW_THREADS
    }
    w->inside -= forks == w->forks;
    bool ours = worker_is_open(w) && c->me == me;
    if (napped < 0)
        return ours ? WH_NAP_STOPPED : WH_NAP_GONE;
    if (ours)
        return WH_NAP_OVER;
    if (worker_is_open(w)) /* a greenlet's copy in a forked child, bound again */
        PyErr_SetString(errors.forked_client, "this call belongs to the parent process");
    else
        worker_explain(w);
    return WH_NAP_GONE;
}

/* The same on our bell. */
static enum wh_nap worker_doze(wh_client *c, int64_t ns)
{
    WorkerObject *w = (WorkerObject *)((char *)c - offsetof(WorkerObject, client));
    if (!worker_sleep(w, wh_time_add(wh_clock_read(CLOCK_MONOTONIC), ns), false))
        return WH_NAP_STOPPED;
    return worker_is_open(w) ? WH_NAP_OVER : WH_NAP_GONE;
}

static const wh_waits worker_waits = {wh_thread_now, worker_nap, worker_doze};

/* There is no free slot, or fewer than a batch still needs. */
static void worker_raise_full(const WorkerObject *w)
{
    const wh_client *c = &w->client;
    uint32_t backed = wh_load_acquire(&c->wheel->backed); /* pairs: backed */
    bool short_of_memory = backed < c->slabs.shared_count;
    if (short_of_memory && c->unanswered) {
        PyErr_SetString(errors.wheel_full,
                        "this worker has no free slot: it has asked the clock for more, which has "
                        "not answered yet; try again in a moment (`wheeld status` says whether the "
                        "clock is running)");
        return;
    }
    uint32_t slots = (short_of_memory ? backed : c->slabs.shared_count) * WH_SLAB_SLOTS;
    uint32_t kept = 0;
    for (uint32_t row = 0; row < w->row_count; row++)
        kept += wh_load_relaxed(&w->rows[row].state) == WH_ROW_KEPT;
    char begin[96], of_kept[96] = "";
    if (kept)
        snprintf(of_kept, sizeof of_kept,
                 " (%u departed worker%s kept with theirs, for --keep-for)", kept,
                 kept == 1 ? " is" : "s are");
    if (c->short_of > 1)
        snprintf(begin, sizeof begin, "cannot get %llu more slots at once: of all %u slots",
                 (unsigned long long)c->short_of, slots);
    else
        snprintf(begin, sizeof begin, "all %u slots are taken:", slots);
    PyErr_Format(
        errors.wheel_full,
        "%s %llu have pending timers of all workers%s, %llu have events that wait for this "
        "worker's poll(); cancel or poll, or %s; `wheeld status` says who holds how many",
        begin, (unsigned long long)wh_load_relaxed(&c->wheel->linked), of_kept,
        (unsigned long long)wh_client_ready(c),
        short_of_memory ? "enlarge /dev/shm, which is too small for the rest of the capacity "
                          "(mount -o remount,size=...; in a container --shm-size)"
                        : "start wheeld with a larger --capacity");
}

/* There is no block for a payload. */
static void worker_raise_heap(const wh_client *c)
{
    uint32_t backed = wh_client_heap_backed(c);
    if (backed < c->heap.count && c->unanswered)
        PyErr_SetString(errors.payload_heap_full,
                        "the payload heap has no room: this worker has asked the clock for more "
                        "memory, which has not answered yet; try again in a moment (`wheeld "
                        "status` says whether the clock is running)");
    else
        PyErr_Format(errors.payload_heap_full,
                     "the payload heap is full: %llu bytes of payloads of all workers in %u KiB; "
                     "cancel or poll, or %s",
                     (unsigned long long)wh_heap_bytes(&c->heap), backed * (WH_CHUNK_BYTES / 1024),
                     backed < c->heap.count
                         ? "enlarge /dev/shm, which is too small for the rest of the heap (mount "
                           "-o remount,size=...; in a container --shm-size)"
                         : "start wheeld with a larger --payload-heap");
}

static void worker_raise_detached(const wh_client *c)
{
    PyErr_Format(errors.detached_full,
                 "%llu detached timers are pending, and %u may be (--detached-capacity); cancel "
                 "some, or start wheeld with a higher cap; `wheeld inspect` lists them",
                 (unsigned long long)wh_load_relaxed(&c->wheel->detached), c->detached_most);
}

static void worker_raise_quota(const wh_client *c)
{
    PyErr_Format(
        errors.wheel_full,
        "this worker holds %llu slots, and a worker may hold %llu (--max-per-worker); %llu of them "
        "are events that wait for its poll(); cancel or poll, or start wheeld with a higher cap",
        (unsigned long long)c->quota.held, (unsigned long long)c->quota.most,
        (unsigned long long)wh_client_ready(c));
}

static void worker_raise_ring(wh_client *c, enum wh_call call)
{
    if (call == WH_CALL_RING_TOO_SMALL)
        PyErr_Format(PyExc_ValueError,
                     "block=False: %llu at once exceed this worker's ring (%llu); use "
                     "smaller batches, or block=True; nothing was done",
                     (unsigned long long)c->short_of, (unsigned long long)c->sub_size);
    else
        PyErr_Format(
            errors.ring_full,
            "block=False: the clock process has not yet drained what this worker submitted: "
            "room for %llu, needed %llu; nothing was done; try again in a moment",
            (unsigned long long)wh_client_room(c), (unsigned long long)c->short_of);
}

/* Set the error that says why a call failed. After a nap one is already set. */
static wh_seldom void worker_raise(WorkerObject *w, enum wh_call call)
{
    wh_client *c = &w->client;
    if (call == WH_CALL_WHEEL_FULL)
        worker_raise_full(w);
    else if (call == WH_CALL_HEAP_FULL)
        worker_raise_heap(c);
    else if (call == WH_CALL_DETACHED_FULL)
        worker_raise_detached(c);
    else if (call == WH_CALL_OVER_QUOTA)
        worker_raise_quota(c);
    else if (call == WH_CALL_RING_FULL || call == WH_CALL_RING_TOO_SMALL)
        worker_raise_ring(c, call);
    else if (call == WH_CALL_NOT_DRAINED)
        PyErr_SetString(errors.daemon_not_running, not_drained);
    else if (call == WH_CALL_NO_MEMORY)
        PyErr_NoMemory();
}
