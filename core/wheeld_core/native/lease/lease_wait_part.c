/* Waiting for a lease: the threads and tasks of this process, by ticket. Of those that wait for the
 * same lease the first one's ticket is shown to all processes, and only that one looks.
 *
 * A waiter looks whenever it was woken; when the time of a seat is over; and after a slice, so
 * that it sees a signal, a close(), and a turn that somebody who is stopped has not used. */

#define LEASE_SHORT_NS                                                                             \
    2000000 /* where no futex helps: virtual time, gevent, no place in the queue */

typedef struct LeaseWait {
    struct LeaseWait *next;
    LeaseObject *lease; /* strong */
    uint64_t incarnation; /* of the worker that waits */
    uint64_t ticket;
    uint32_t place; /* WH_NIL: none: it looks often, and comes after those who have one */
    bool queued;
} LeaseWait;

static LeaseWait *lease_waits; /* of this process, by ticket; the gate guards them */
static const char lease_wait_name[] = "wheeld_core.LeaseWait";

/* Do both wait for the same, as the same worker? */
static bool wait_is_like(const LeaseWait *one, const LeaseWait *other)
{
    return one->lease->worker == other->lease->worker && one->incarnation == other->incarnation &&
           one->lease->lease.key.other == other->lease->lease.key.other;
}

static LeaseWait *wait_first_like(const LeaseWait *me)
{
    LeaseWait *first = lease_waits;
    while (first && !wait_is_like(first, me))
        first = first->next;
    return first;
}

/* Does it still wait for its worker? Not after a close, an eviction, or in a forked child. */
static bool wait_stands(const LeaseWait *me)
{
    return me->queued && worker_is_open(me->lease->worker) && lease_is_bound(me->lease) &&
           me->incarnation == me->lease->incarnation;
}

static void wait_link(LeaseWait *me)
{
    LeaseWait **at = &lease_waits;
    while (*at && (*at)->ticket <= me->ticket)
        at = &(*at)->next;
    me->next = *at;
    *at = me;
    me->queued = true;
}

static void wait_unlink(LeaseWait *me)
{
    LeaseWait **at = &lease_waits;
    while (*at != me)
        at = &(*at)->next;
    *at = me->next;
    me->queued = false;
}

/* Into the queue, at its end. It looks after this. */
static void wait_enter(LeaseWait *me)
{
    wh_keys *k = &me->lease->worker->keys;
    me->ticket = wh_lease_queue_ticket(k, me->lease->seats);
    wait_link(me);
    if (wait_first_like(me) == me &&
        (me->place = wh_lease_queue_place(k, &me->lease->lease)) != WH_NIL)
        wh_lease_queue_show(k, &me->lease->lease, me->place, me->ticket);
}

/* Does the worker of `me` show another ticket? */
static bool wait_is_last(const LeaseWait *me)
{
    for (const LeaseWait *w = lease_waits; w; w = w->next)
        if (w->lease->worker == me->lease->worker && w->incarnation == me->incarnation &&
            w->place != WH_NIL)
            return false;
    return true;
}

/* Out of the queue: the next one of this process is shown, and turns of `me` go on. */
static void wait_leave(LeaseWait *me)
{
    wh_keys *k = &me->lease->worker->keys;
    bool stands = wait_stands(me);
    wait_unlink(me);
    if (!stands || me->place == WH_NIL)
        return;
    LeaseWait *next = wait_first_like(me);
    if (next) {
        next->place = me->place;
        wh_lease_queue_show(k, &me->lease->lease, next->place, next->ticket);
        wh_lease_queue_wake(k, k->me, wh_lease_bit(next->place) | WH_LEASE_ANY, wake_some);
    } else {
        wh_lease_queue_hide(k, me->place, wait_is_last(me));
    }
    me->place = WH_NIL;
    wh_lease_call call = {.now = wh_client_now(&me->lease->worker->client), .wake = wake_some};
    wh_lease_pass_on(k, &me->lease->lease, &call);
}

static void wait_free(PyObject *capsule)
{
    Held held;
    LeaseWait *me = PyCapsule_GetPointer(capsule, lease_wait_name);
    lease_lock(&held, me->lease);
    if (me->queued)
        wait_leave(me);
    lock_end(&held);
    Py_DECREF(me->lease);
    free(me);
}

/* _enter() -> a waiter in the queue */
static PyObject *lease_enter(LeaseObject *l, PyObject *unused)
{
    wh_lease_call call;
    (void)unused;
    if (!lease_begin(l, &call))
        return NULL;
    LeaseWait *me = malloc(sizeof *me);
    if (me == NULL)
        return PyErr_NoMemory();
    *me = (LeaseWait){
        .lease = (LeaseObject *)Py_NewRef(l), .incarnation = l->incarnation, .place = WH_NIL};
    PyObject *capsule = PyCapsule_New(me, lease_wait_name, wait_free);
    if (capsule)
        wait_enter(me);
    else
        free(me), Py_DECREF(l);
    return capsule;
}

static LeaseWait *wait_of(PyObject *object)
{
    return PyCapsule_GetPointer(object, lease_wait_name);
}

static wh_seldom PyObject *wait_explain(const LeaseWait *me)
{
    if (!me->queued)
        PyErr_SetString(PyExc_ValueError, "this waiter has left the queue");
    else if (worker_is_open(me->lease->worker))
        PyErr_SetString(errors.forked_client, "this call belongs to the parent process, or to a "
                                              "worker of a daemon that was stopped");
    else
        worker_explain(me->lease->worker);
    return NULL;
}

/* If its turn was passed by, or it had found no place, it goes to the end of the queue. */
static void wait_show_again(LeaseWait *me)
{
    wh_keys *k = &me->lease->worker->keys;
    if (me->place == WH_NIL)
        me->place = wh_lease_queue_place(k, &me->lease->lease);
    if (me->place == WH_NIL ||
        /* pairs: lease-queue */
        wh_load_seq(&wh_lease_place_at(k, k->me, me->place)->ticket) == me->ticket)
        return;
    uint32_t place = me->place;
    wait_unlink(me);
    me->place = WH_NIL;
    me->ticket = wh_lease_queue_ticket(k, me->lease->seats);
    wait_link(me);
    LeaseWait *first = wait_first_like(me);
    first->place = place;
    wh_lease_queue_show(k, &me->lease->lease, place, first->ticket);
    if (first != me)
        wh_lease_queue_wake(k, k->me, wh_lease_bit(place) | WH_LEASE_ANY, wake_some);
}

/* _look(waiter) -> (token; 0: it is not its turn, ns after which to look again) */
static PyObject *lease_look(LeaseObject *l, PyObject *object)
{
    LeaseWait *me = wait_of(object);
    wh_lease_call call;
    if (me == NULL)
        return NULL;
    if (!wait_stands(me) || !lease_begin(l, &call))
        return PyErr_Occurred() ? NULL : wait_explain(me);
    int64_t next = l->slice_ns;
    int taken = 0;
    if (wait_first_like(me) == me)
        wait_show_again(me);
    if (wait_first_like(me) == me) {
        call.ticket = me->place == WH_NIL ? 0 : me->ticket;
        if ((taken = lease_take(l, &call)) < 0)
            return NULL;
        int64_t rest = wh_time_sub(wh_lease_next(&l->worker->keys, &l->lease), call.now);
        next = rest < next ? rest > 0 ? rest : 0 : next;
    }
    bool often = me->place == WH_NIL && wait_first_like(me) == me;
    if ((often || l->worker->client.virtual_clock) && next > LEASE_SHORT_NS)
        next = LEASE_SHORT_NS;
    unsigned long long token = taken ? l->token : 0;
    return Py_BuildValue("KL", token, (long long)next);
}

/* _leave(waiter) */
static PyObject *lease_leave(LeaseObject *l, PyObject *object)
{
    LeaseWait *me = wait_of(object);
    (void)l;
    if (me == NULL)
        return NULL;
    if (me->queued)
        wait_leave(me);
    Py_RETURN_NONE;
}

/* _seen() -> a number that changes with each wake-up: read it before _look() */
static PyObject *lease_seen(LeaseObject *l, PyObject *unused)
{
    wh_lease_call call;
    (void)unused;
    if (!lease_begin(l, &call))
        return NULL;
    /* pairs: lease-wake - read before the seats: whoever frees one later changes it */
    return PyLong_FromUnsignedLong(wh_load_seq(&l->worker->keys.mine->wake));
}

/* _sleep(seen, ns, waiter): until woken since `seen`; None: woken for any waiter of the worker */
static PyObject *lease_sleep(LeaseObject *l, PyObject *const *args, Py_ssize_t n)
{
    uint64_t seen, ns;
    wh_lease_call call;
    const LeaseWait *me = NULL;
    if (n != 3)
        return PyErr_Format(PyExc_TypeError, "_sleep() takes two numbers and a waiter");
    if (!parse_u64(args[0], &seen, "seen") || !parse_u64(args[1], &ns, "ns") ||
        (args[2] != Py_None && (me = wait_of(args[2])) == NULL) || !lease_begin(l, &call))
        return NULL;
    int64_t rest = ns < (uint64_t)l->slice_ns ? (int64_t)ns : l->slice_ns;
    int64_t until = wh_time_add(wh_clock_read(CLOCK_MONOTONIC), rest);
    struct timespec end = {until / 1000000000, until % 1000000000};
    uint32_t bits = me && me->place != WH_NIL ? wh_lease_bit(me->place) : WH_LEASE_ANY;
    wh_au32 *word = &l->worker->keys.mine->wake;
    int waited =
        worker_wait_in_hub(l->worker, -1, -1, rest < LEASE_SHORT_NS ? rest : LEASE_SHORT_NS);
    if (waited == 0) {
        Py_BEGIN_ALLOW_THREADS syscall(SYS_futex, word, FUTEX_WAIT_BITSET, (uint32_t)seen, &end,
                                       NULL, bits);
        Py_END_ALLOW_THREADS
    }
    if (waited < 0 || PyErr_CheckSignals() < 0)
        return NULL;
    Py_RETURN_NONE;
}
