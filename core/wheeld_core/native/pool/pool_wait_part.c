/* Waiting for memory of a pool, in one queue over all processes.
 *
 * A thread that waits has a ticket; each worker shows the lowest of its threads' tickets, and
 * sleeps on a futex of its own in shared memory. A thread that gives memory back, or leaves the
 * queue, wakes all; then the lowest ticket takes. Nothing of this is needed for safety: `used`
 * decides. It only says whose turn it is.
 *
 * Nobody is held up for ever by the head of the queue. If that has died, the supervisor takes it
 * out. If it is stopped, those behind it have seen memory that would do for it, and it in its
 * place, for a second: from then on this process passes tickets up to that one by. A worker that
 * was stopped, and so may have been passed by, goes to the end of the queue.
 */

#define HUB_SLICE_NS 5000000 /* under gevent, which knows no futex: the interval of its checks */

typedef struct Waiter { /* not on the stack: gevent moves the stacks of waiting greenlets */
    struct Waiter *next;
    uint64_t ticket, wants;
    uint64_t held_by; /* the ticket that blocks this one though there is memory for it, since... */
    int64_t held_since;
    PoolQueue *queue;
    uint64_t incarnation; /* of the worker that waits there */
} Waiter;

/* Is that place in the queue still this worker's? Not after a close, an eviction, or in a forked
 * child. */
static bool waiter_stands(const PoolObject *p, const Waiter *me)
{
    return p->queue == me->queue && pool_is_ours(p, me->incarnation);
}

static void queue_show(PoolObject *p)
{
    const Waiter *first = p->queue->first;
    wh_wait_queue_show(&p->b, first ? first->ticket : 0, first ? first->wants : 0);
}

static void waiter_enter(PoolObject *p, Waiter *me)
{
    Waiter **at = &me->queue->first;
    while ((me->ticket = wh_wait_queue_ticket(&p->b)) == 0)
        ; /* 0 says "nobody" */
    while (*at && (*at)->ticket <= me->ticket)
        at = &(*at)->next;
    me->next = *at;
    *at = me;
    if (me->queue->first == me)
        queue_show(p);
}

static void waiter_leave(PoolObject *p, Waiter *me)
{
    Waiter **at = &me->queue->first;
    bool was_first = *at == me;
    while (*at != me)
        at = &(*at)->next;
    *at = me->next;
    if (!waiter_stands(p, me))
        return;
    if (was_first)
        queue_show(p);
    pool_stir(p); /* the next ticket, here or in another worker, may be the head now */
}

/* The lowest ticket before ours that is not passed by, and what it wants; UINT64_MAX: it is our
 * turn. */
static uint64_t queue_head(const PoolObject *p, const Waiter *me, uint64_t *wants)
{
    uint64_t past = p->queue->past, limit = me ? me->ticket : UINT64_MAX;
    uint64_t head = wh_wait_queue_first_other(&p->b, past, wants);
    for (const Waiter *w = p->queue->first; w && w != me; w = w->next)
        if (w->ticket > past && w->ticket < head)
            head = w->ticket, *wants = w->wants;
    return head < limit ? head : UINT64_MAX;
}

/* Is there memory for this ticket, and none before it? */
static bool waiter_may_take(PoolObject *p, Waiter *me, int64_t now)
{
    uint64_t wants = 0, head = queue_head(p, me, &wants);
    bool idle = head != UINT64_MAX && pool_fits(p, wants); /* the head could, but does not */
    if (!idle || head != me->held_by) {
        me->held_by = idle ? head : 0;
        me->held_since = now;
    } else if (now - me->held_since >= p->patience_ns) {
        p->queue->past = head > p->queue->past ? head : p->queue->past;
        me->held_by = 0;
        head = queue_head(p, me, &wants);
    }
    return head == UINT64_MAX && pool_fits(p, me->wants);
}

/* Sleep until woken since `seen`, or for a slice, or until `until`; then see to signals. False: an
 * error is set. */
static bool waiter_sleep(PoolObject *p, Waiter *me, uint32_t seen, int64_t now, int64_t until)
{
    int64_t rest = wh_time_sub(until, now);
    rest = rest < p->slice_ns ? rest : p->slice_ns;
    rest = rest > 0 ? rest : 0;
    struct timespec slice = {rest / 1000000000, rest % 1000000000};
    wh_au32 *word = &p->b.mine->wake;
    int waited = worker_wait_in_hub(p->worker, -1, -1, rest < HUB_SLICE_NS ? rest : HUB_SLICE_NS);
    if (waited == 0) {
        Py_BEGIN_ALLOW_THREADS syscall(SYS_futex, word, FUTEX_WAIT, seen, &slice, NULL, 0);
        Py_END_ALLOW_THREADS
    }
    if (waited < 0 || PyErr_CheckSignals() < 0)
        return false;
    if (!waiter_stands(p, me)) {
        if (pool_is_open(p)) /* a forked child's, bound again by a signal handler */
            PyErr_SetString(errors.forked_client, "this call belongs to the parent process");
        else
            pool_explain(p);
        return false;
    }
    /* this process was stopped, and its ticket passed */
    if (wh_clock_read(CLOCK_MONOTONIC) - now > p->patience_ns) {
        waiter_leave(p, me);
        waiter_enter(p, me);
    }
    return true;
}

/* Wait in the queue. 1: our turn has come, and there is memory, taken or only seen; 0: time is up;
 * -1: an error is set. */
static int waiter_await(PoolObject *p, Waiter *me, int64_t until, bool take)
{
    for (;;) {
        /* pairs: pool-wake - read before we look: who gives memory later changes it */
        uint32_t seen = wh_load_seq(&p->b.mine->wake);
        int64_t now = wh_clock_read(CLOCK_MONOTONIC);
        if (waiter_may_take(p, me, now) && (!take || pool_take(p, me->wants)))
            return 1;
        if (take && !wh_pool_is_dry(p->b.pool) && !pool_fits(p, me->wants))
            pool_dry(p, me->wants);
        if (until <= now)
            return 0;
        if (!waiter_sleep(p, me, seen, now, until))
            return -1;
    }
}

/* Wait in the queue until then. */
static int pool_await(PoolObject *p, uint64_t n, int64_t until, bool take)
{
    Waiter *me = malloc(sizeof *me);
    if (me == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *me = (Waiter){.wants = n, .queue = p->queue, .incarnation = p->incarnation};
    p->queue->users++; /* it may be bound again during the wait */
    waiter_enter(p, me);
    int found = waiter_await(p, me, until, take);
    waiter_leave(p, me);
    queue_leave(me->queue);
    free(me);
    return found;
}

/* Does nobody wait but those whose tickets were passed? */
static bool queue_is_free(const PoolObject *p)
{
    uint64_t wants;
    return wh_likely(wh_wait_queue_empty(&p->b)) || queue_head(p, NULL, &wants) == UINT64_MAX;
}

/* When a wait ends: `timeout` seconds from now; None: never. */
static bool parse_wait(PyObject *timeout, int64_t *until)
{
    int64_t delay;
    *until = INT64_MAX;
    if (timeout == NULL || timeout == Py_None)
        return true;
    if (!parse_delay(timeout, &delay, "timeout"))
        return false;
    *until = wh_time_add(wh_clock_read(CLOCK_MONOTONIC), delay);
    return true;
}

/* allocate(size, timeout=None) */
static PyObject *pool_allocate(PoolObject *p, PyObject *const *args, Py_ssize_t n,
                               PyObject *kwnames)
{
    static const char *const names[] = {"size", "timeout", NULL};
    PyObject *values[2] = {0};
    uint64_t size;
    int64_t until;
    if (!parse_keywords("allocate", names, 2, args, n, kwnames, values))
        return NULL;
    if (values[0] == NULL)
        return PyErr_Format(PyExc_TypeError, "allocate() needs a size, in bytes");
    if (!parse_wait(values[1], &until) || !pool_parse_size(p, values[0], &size))
        return NULL;
    if (queue_is_free(p) && pool_take(p, size))
        return pool_buffer_new(p, size);
    wh_count(&p->b.mine->waits, 1);
    int found = pool_await(p, size, until, true);
    if (found > 0)
        return pool_buffer_new(p, size);
    if (found < 0)
        return NULL;
    wh_count(&p->b.mine->timeouts, 1);
    return PyErr_Format(
        PyExc_TimeoutError,
        "%llu bytes of pool %R did not become free in time (%llu of %llu are in use)",
        (unsigned long long)size, p->name, (unsigned long long)wh_budget_used(&p->b),
        (unsigned long long)p->size);
}

/* wait_available(timeout=None, size=1) */
static PyObject *pool_wait_available(PoolObject *p, PyObject *const *args, Py_ssize_t n,
                                     PyObject *kwnames)
{
    static const char *const names[] = {"timeout", "size", NULL};
    PyObject *values[2] = {0};
    uint64_t size = 1;
    int64_t until;
    if (!parse_keywords("wait_available", names, 2, args, n, kwnames, values) ||
        !parse_wait(values[0], &until))
        return NULL;
    if (!(values[1] ? pool_parse_size(p, values[1], &size) : pool_usable(p)))
        return NULL;
    if (queue_is_free(p) && pool_fits(p, size))
        Py_RETURN_TRUE;
    int found = pool_await(p, size, until, false);
    return found < 0 ? NULL : PyBool_FromLong(found);
}
