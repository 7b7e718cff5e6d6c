/* Reserving: ids that are known, and can be written down, before their timers are armed.
 *
 * A slot's next id follows from its generation. So a worker can claim slots, write the ids into a
 * journal of its own and arm them then; if it dies on the way and its slots are kept ("keep"), its
 * successor reads off each state word whether that id was armed. Nobody else can have armed it: a
 * slot that is claimed stays the worker's, and its successor's until that one gives it away: a slab
 * of which something is reserved is not parked.
 *
 * `reserved` has a bit per slot that is in the caller's hands: no id is armed or released twice.
 */

static uint64_t slot_bit(uint32_t slot) { return 1ull << (slot & (WH_SLAB_SLOTS - 1)); }

/* Is it an id that reserve() gave, neither armed nor released since? */
static bool is_reserved(const WorkerObject *w, uint64_t id)
{
    const wh_client *c = &w->client;
    uint64_t slot = id & 0xffffffffu;
    if (w->reserved == NULL || slot >= c->capacity ||
        !(w->reserved[slot >> WH_SLAB_BITS] & slot_bit((uint32_t)slot)))
        return false;
    return wh_client_next_gen(c, slot) == wh_id_gen(id);
}

static bool refuse_unreserved(uint64_t id)
{
    PyErr_Format(
        PyExc_ValueError,
        "id %llu is not reserved: it was armed or released before, or is of another worker",
        (unsigned long long)id);
    return false;
}

/* _reserve_batch(ids, block=True): n uint64, written. All or none. */
static PyObject *worker_reserve_batch(WorkerObject *w, PyObject *args)
{
    wh_client *c = &w->client;
    PyObject *ids_object;
    Array ids = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "O|p", &ids_object, &wait))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, true) && worker_usable(w);
    if (ok && w->reserved == NULL &&
        (w->reserved = calloc(c->slabs.count, sizeof(uint64_t))) == NULL) {
        PyErr_NoMemory();
        ok = false;
    }
    Batch batch = {.ids = ids.view.buf, .n = n, .wait = wait};
    if (ok) {
        c->slabs.pinned = w->reserved;
        uint64_t me = worker_hold(w);
        ok = batch_claim(w, &batch);
        (void)worker_unhold(w, me); /* what is reserved keeps its slab from being parked */
    }
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        uint32_t slot = (uint32_t)batch.ids[i];
        w->reserved[slot >> WH_SLAB_BITS] |= slot_bit(slot);
        batch.ids[i] = wh_id(wh_client_next_gen(c, slot), slot);
    }
    PyBuffer_Release(&ids.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* _release_batch(ids): n uint64; those that are reserved go back. */
static PyObject *worker_release_batch(WorkerObject *w, PyObject *ids_object)
{
    Array ids = {0};
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) && worker_usable(w);
    const uint64_t *id = ids.view.buf;
    for (Py_ssize_t i = 0; ok && i < n; i++)
        if (is_reserved(w, id[i])) {
            uint32_t slot = (uint32_t)id[i];
            w->reserved[slot >> WH_SLAB_BITS] &= ~slot_bit(slot);
            wh_slabs_give(&w->client.slabs, slot);
        }
    if (ok)
        wh_slabs_park(&w->client.slabs);
    PyBuffer_Release(&ids.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* _were_armed(ids, armed): ids: n uint64; armed: n bools, written. */
static PyObject *worker_were_armed(WorkerObject *w, PyObject *args)
{
    PyObject *ids_object, *armed_object;
    const wh_client *c = &w->client;
    Array ids = {0}, armed = {0};
    if (!PyArg_ParseTuple(args, "OO", &ids_object, &armed_object))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) &&
              array_get(&armed, armed_object, 1, n, true) && worker_usable(w);
    const uint64_t *id = ids.view.buf;
    uint8_t *out = armed.view.buf;
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        uint64_t slot = id[i] & 0xffffffffu;
        /* pairs: arm - and generations are compared as ring positions are: they come round */
        uint64_t state = slot < c->capacity ? wh_load_acquire(&c->states[slot]) : 0;
        out[i] = slot < c->capacity && wh_id_gen(id[i]) &&
                 (int32_t)(wh_state_gen(state) - wh_id_gen(id[i])) >= 0;
    }
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&armed.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* What _arm_batch takes, checked. */
typedef struct {
    const int64_t *deadlines;
    const uint64_t *cookies, *ids;
    Payloads payloads;
    Py_ssize_t n;
    uint32_t clock;
    int wait;
} Reserved;

/* False: an error is set that names the row. Nothing was armed. */
static bool reserved_check(WorkerObject *w, const Reserved *b)
{
    wh_request unused;
    for (Py_ssize_t i = 0; i < b->n; i++) {
        if (!is_reserved(w, b->ids[i]))
            return refuse_unreserved(b->ids[i]);
        if (b->deadlines[i] < 0) {
            PyErr_Format(errors.invalid_delay, "deadlines[%zd] must be 0 or more ns: got %lld", i,
                         (long long)b->deadlines[i]);
            return false;
        }
        if (!payload_of_row(w, &b->payloads, i, &unused))
            return false;
    }
    return true;
}

/* Arm in the order of the rows. False: an error is set; what was armed stays armed, a beginning.
 * What was checked is checked again: a wait lets other threads at the caller's arrays. */
static bool reserved_arm(WorkerObject *w, const Reserved *b, wh_request r)
{
    wh_client *c = &w->client;
    uint64_t me = c->me;
    int64_t earliest = INT64_MAX, now = worker_now(c, b->clock);
    r.now = wh_client_now(c);
    r.flags = b->clock;
    for (Py_ssize_t i = 0; i < b->n; i++) {
        if (i + BATCH_AHEAD < b->n)
            wh_client_prefetch(c, (uint32_t)b->ids[i + BATCH_AHEAD]);
        if (wh_unlikely(!wh_client_fits(c, 1)) && !worker_wait_room(w, 1, b->wait)) {
            if (worker_is(w, me))
                wh_client_publish(c, earliest);
            return false;
        }
        uint64_t id = b->ids[i];
        if (wh_unlikely(!is_reserved(w, id))) { /* twice in one batch */
            wh_client_publish(c, earliest);
            return refuse_unreserved(id);
        }
        if (wh_unlikely(!payload_of_row(w, &b->payloads, i, &r))) {
            wh_client_publish(c, earliest);
            return false;
        }
        uint32_t slot = (uint32_t)id;
        r.deadline = b->deadlines[i];
        if (b->cookies)
            r.cookie = b->cookies[i];
        w->reserved[slot >> WH_SLAB_BITS] &= ~slot_bit(slot);
        wh_client_push(c, wh_client_arm(c, slot, &r));
        wh_count(&c->seg->scheduled, 1);
        int64_t base = wh_time_add(r.now, wh_time_sub(r.deadline, now));
        earliest = base < earliest ? base : earliest;
        if (i % BATCH_PUBLISH == BATCH_PUBLISH - 1)
            wh_client_publish(c, earliest);
    }
    wh_client_publish(c, earliest);
    wh_slabs_park(&c->slabs);
    return true;
}

/* _arm_batch(deadlines, clock, cookies, ids, data, offsets, to, block=True)
 * deadlines: n int64 ns on `clock`; cookies: n uint64 or an int; ids: n uint64, reserved; data,
 * offsets: None, or bytes and n + 1 int64 that say where each payload begins and the last one
 * ends. */
static PyObject *worker_arm_batch(WorkerObject *w, PyObject *args)
{
    PyObject *deadlines, *cookies, *ids, *data, *offsets;
    Extras extras = {0};
    wh_request r = {0};
    Array arrays[4] = {0};
    Py_buffer bytes = {0};
    Reserved b = {.wait = 1};
    if (!PyArg_ParseTuple(args, "OIOOOOO|p", &deadlines, &b.clock, &cookies, &ids, &data, &offsets,
                          &extras.to, &b.wait))
        return NULL;
    if (b.clock >= WH_CLOCK_KINDS)
        return PyErr_Format(PyExc_ValueError, "no such clock");
    bool each_cookie = !PyLong_Check(cookies), each_payload = data != Py_None;
    extras.cookie = each_cookie ? NULL : cookies;
    b.n = PyObject_Length(deadlines);
    bool ok = b.n >= 0 && parse_extras(&extras, &r) &&
              array_get(&arrays[0], deadlines, 8, b.n, false) &&
              array_get(&arrays[1], ids, 8, b.n, false) &&
              (!each_cookie || array_get(&arrays[2], cookies, 8, b.n, false)) &&
              (!each_payload || (array_get(&arrays[3], offsets, 8, b.n + 1, false) &&
                                 PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE) == 0));
    b.deadlines = arrays[0].view.buf;
    b.ids = arrays[1].view.buf;
    b.cookies = arrays[2].view.buf;
    b.payloads = (Payloads){bytes.buf, bytes.len, arrays[3].view.buf};
    ok = ok && worker_usable(w) && place_extras(w, &extras, &r) && reserved_check(w, &b) &&
         batch_fits(w, b.n, b.wait) && reserved_arm(w, &b, r);
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(&arrays[i].view);
    PyBuffer_Release(&bytes);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
