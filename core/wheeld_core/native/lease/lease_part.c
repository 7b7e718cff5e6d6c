/* Lease: a worker's way to a lease or a semaphore of the directory (wheeld/sharing/leases.h).
 * wheeld_client.Lease and Semaphore are its subclasses. Who has a seat stands in shared memory; an
 * object remembers the words of those that it took. */

typedef struct {
    PyObject_HEAD WorkerObject *worker; /* NULL: never initialised */
    PyObject *name, *key; /* key: None: there is none */
    uint64_t wheel, incarnation; /* whose `lease` and `holds` are: others after a fork or restart */
    wh_lease lease;
    wh_lease_hold *holds; /* in the order in which they were taken */
    uint32_t held, seats;
    int64_t span; /* ns that a seat is held without a renewal */
    uint64_t token; /* the last one that was drawn */
    /* How long a waiter sleeps before it looks around; tests of wake-ups have more. */
    long long slice_ns;
    bool semaphore;
} LeaseObject;

static inline void lease_lock(Held *held, LeaseObject *l)
{
    lock_with_gate(held, (PyObject *)l->worker);
}

/* The places of this lease's seats, which nobody outside of the daemon knows; and memory for them.
 * The seats of another wheel, or of the parent process, are not held. */
static wh_seldom bool lease_bind(LeaseObject *l, uint64_t wheel, uint64_t incarnation)
{
    Py_ssize_t length;
    WorkerObject *w = l->worker;
    const char *text = text_utf8(l->name, &length, "name "), kind = l->semaphore ? 's' : 'e';
    if (text == NULL)
        return false;
    uint64_t hash = wh_hash_piece(wh_hash_add(wheel, 'e'), kind, text, (size_t)length);
    uint64_t other = wh_hash_piece(wh_hash_add(~wheel, 'E'), kind, text, (size_t)length);
    if (l->key != Py_None && !key_hash_object(l->key, &hash, &other))
        return false;
    l->held = 0;
    l->lease = (wh_lease){wh_words_key(hash, other, WH_WORD_LEASE), l->seats};
    for (uint32_t seat = 0; seat < l->seats; seat++) {
        wh_word_key key = wh_lease_key(&l->lease, seat);
        if (!wh_words_there(&w->keys, &key))
            return keys_refuse(w, l->name);
    }
    l->wheel = wheel, l->incarnation = incarnation;
    return true;
}

static inline bool lease_is_bound(const LeaseObject *l)
{
    const WorkerObject *w = l->worker;
    return wh_likely(l->incarnation == wh_owner_incarnation(w->client.me) &&
                     l->wheel == w->client.wheel->head.token);
}

/* May a call begin? */
static bool lease_begin(LeaseObject *l, wh_lease_call *call)
{
    WorkerObject *w = l->worker;
    if (wh_unlikely(w == NULL)) {
        PyErr_SetString(PyExc_ValueError, "this lease was never initialised");
        return false;
    }
    if (!worker_may_begin(w, false))
        return false;
    if (!lease_is_bound(l) &&
        !lease_bind(l, w->client.wheel->head.token, wh_owner_incarnation(w->client.me)))
        return false;
    int64_t now = wh_client_now(&w->client);
    *call = (wh_lease_call){.now = now, .ends = wh_time_add(now, l->span), .wake = wake_some};
    return true;
}

/* Forget what is no longer held. */
static void lease_drop_lost(LeaseObject *l, int64_t now)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->held; i++)
        if (wh_lease_holds(&l->worker->keys, &l->lease, &l->holds[i], now))
            l->holds[kept++] = l->holds[i];
    l->held = kept;
}

/* Take a seat, and remember it. -1: an error is set. */
static int lease_take(LeaseObject *l, const wh_lease_call *call)
{
    wh_lease_hold hold;
    if (l->held == l->seats)
        lease_drop_lost(l, call->now);
    if (l->held == l->seats)
        return 0;
    enum wh_leased taken = wh_lease_take(&l->worker->keys, &l->lease, call, &hold);
    if (wh_unlikely(taken == WH_LEASE_NO_ROOM)) {
        raise_about(errors.keys_full, l->name,
                    "no room for the lease {}: both sets of places that it may be in are full of "
                    "keys in use (%u places in all); start wheeld with a larger --capacity",
                    wh_words_places(&l->worker->keys));
        return -1;
    }
    if (taken == WH_LEASE_REFUSED)
        return 0;
    l->holds[l->held++] = hold;
    l->token = hold.token;
    return 1;
}

static PyObject *lease_try_acquire(LeaseObject *l, PyObject *unused)
{
    wh_lease_call call;
    (void)unused;
    int taken = lease_begin(l, &call) ? lease_take(l, &call) : -1;
    return taken < 0 ? NULL : PyBool_FromLong(taken);
}

/* _take() -> the token of the seat that was taken; 0: none is free */
static PyObject *lease_take_token(LeaseObject *l, PyObject *unused)
{
    wh_lease_call call;
    (void)unused;
    int taken = lease_begin(l, &call) ? lease_take(l, &call) : -1;
    return taken < 0 ? NULL : PyLong_FromUnsignedLongLong(taken ? l->token : 0);
}

/* Give back the seat that was taken last, or the one of a token. */
static PyObject *lease_give(LeaseObject *l, uint64_t token)
{
    wh_lease_call call;
    if (!lease_begin(l, &call))
        return NULL;
    for (uint32_t i = l->held; i > 0; i--) {
        wh_lease_hold hold = l->holds[i - 1];
        if (token && hold.token != token)
            continue;
        memmove(&l->holds[i - 1], &l->holds[i], (l->held - i) * sizeof hold);
        l->held--;
        if (wh_lease_give(&l->worker->keys, &l->lease, &hold, &call))
            Py_RETURN_TRUE;
        if (token)
            break;
    }
    Py_RETURN_FALSE;
}

static PyObject *lease_release(LeaseObject *l, PyObject *unused)
{
    (void)unused;
    return lease_give(l, 0);
}

/* _release(token) */
static PyObject *lease_release_token(LeaseObject *l, PyObject *object)
{
    uint64_t token;
    return parse_u64(object, &token, "token") ? lease_give(l, token) : NULL;
}

static PyObject *lease_renew(LeaseObject *l, PyObject *unused)
{
    wh_lease_call call;
    (void)unused;
    if (!lease_begin(l, &call))
        return NULL;
    uint32_t held = l->held, kept = 0;
    for (uint32_t i = 0; i < held; i++)
        if (wh_lease_renew(&l->worker->keys, &l->lease, &l->holds[i], &call))
            l->holds[kept++] = l->holds[i];
    l->held = kept;
    return PyBool_FromLong(held && kept == held);
}

static PyObject *lease_held(LeaseObject *l, void *unused)
{
    WorkerObject *w = l->worker;
    (void)unused;
    if (w == NULL || !worker_is_open(w) || !lease_is_bound(l))
        Py_RETURN_FALSE;
    int64_t now = wh_client_now(&w->client);
    bool held = false; /* only asked: the next renew() tells of what was lost */
    for (uint32_t i = 0; !held && i < l->held; i++)
        held = wh_lease_holds(&w->keys, &l->lease, &l->holds[i], now);
    return PyBool_FromLong(held);
}

static PyObject *lease_token(LeaseObject *l, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(l->token);
}
