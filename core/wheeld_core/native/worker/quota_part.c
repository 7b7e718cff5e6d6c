/* Quota: who holds how many slots, and how many this worker may hold. */

/* _set_quota(slots): how many it may hold from now on; 0: any number. */
static PyObject *worker_set_quota(WorkerObject *w, PyObject *slots)
{
    uint64_t most = PyLong_AsUnsignedLongLong(slots);
    if (PyErr_Occurred() || !worker_usable(w))
        return NULL;
    w->client.quota = (wh_quota){.most = most};
    w->client.quota.held = most ? wh_quota_count(&w->client.slabs) : 0;
    Py_RETURN_NONE;
}

static void count_holder(uint64_t *held, uint32_t rows, uint32_t row, uint32_t slots)
{
    held[row < rows ? row : rows] += slots;
}

/* _holders(held): uint64 for each row and one more, written: slots of each worker, and those that
 * are free for anybody. */
static PyObject *worker_holders(WorkerObject *w, PyObject *held_object)
{
    Array held = {0};
    if (!worker_usable(w))
        return NULL;
    const wh_slabs *s = &w->client.slabs;
    uint32_t rows = w->client.wheel->max_workers;
    if (!array_get(&held, held_object, 8, (Py_ssize_t)rows + 1, true)) {
        PyBuffer_Release(&held.view);
        return NULL;
    }
    uint64_t *counts = held.view.buf;
    memset(counts, 0, (size_t)held.view.len);
    for (uint32_t slab = 0; slab < s->count; slab++) {
        uint64_t word = wh_owner_name(wh_load_relaxed(&s->owners[slab]));
        if (word == 0 && slab >= s->shared_count)
            continue;
        if (word != WH_SPLIT) {
            count_holder(counts, rows, (uint32_t)(word & 0xffff) - 1, WH_SLAB_SLOTS);
            continue;
        }
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
            uint32_t holder = wh_load_relaxed(&s->holders[slab << WH_SLAB_BITS | i]);
            if (holder != WH_HOLDER_NOBODY && (holder != 0 || slab < s->shared_count))
                count_holder(counts, rows, wh_holder_row(holder), 1);
        }
    }
    PyBuffer_Release(&held.view);
    Py_RETURN_NONE;
}
