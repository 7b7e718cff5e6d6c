/* Gather: items of shared arrays, copied so that copies keep their order.
 *
 * A reader that loads a state, then fields, then the state again learns something only if the loads
 * happen in that order. Numpy's copies are plain loads, which x86 keeps in order and other machines
 * do not; here each word is loaded with acquire, so whatever is gathered later was loaded later.
 * The writers' side is that of the words themselves. */

static void gather_words(const wh_au64 *from, const int64_t *index, uint64_t count, uint64_t words,
                         uint64_t *to)
{
    for (uint64_t i = 0; i < count; i++)
        for (uint64_t word = 0; word < words; word++)
            /* pairs: arm, cancel, extend, fire, slab, comp-head, comp-tail, row - a later look
             * would tell of an earlier time */
            *to++ = wh_load_acquire((wh_au64 *)&from[(uint64_t)index[i] * words + word]);
}

static bool gather_fits(const Mapping maps[3], Py_ssize_t itemsize)
{
    uint64_t items = (uint64_t)maps[0].view.len / (uint64_t)itemsize;
    uint64_t count = (uint64_t)maps[1].view.len / sizeof(int64_t);
    const int64_t *index = maps[1].view.buf;
    bool aligned =
        ((uintptr_t)maps[0].view.buf | (uintptr_t)maps[1].view.buf | (uintptr_t)maps[2].view.buf) %
            8 ==
        0;
    if (!aligned || (uint64_t)maps[2].view.len != count * (uint64_t)itemsize) {
        PyErr_Format(PyExc_ValueError, "%zd bytes for %llu items of %zd bytes, or not aligned",
                     maps[2].view.len, (unsigned long long)count, itemsize);
        return false;
    }
    for (uint64_t i = 0; i < count; i++)
        if (index[i] < 0 || (uint64_t)index[i] >= items) {
            PyErr_Format(PyExc_IndexError, "item %lld of %llu", (long long)index[i],
                         (unsigned long long)items);
            return false;
        }
    return true;
}

/* gather(array, itemsize, index, out): copy the items of whole words that `index` (int64) names. */
static PyObject *native_gather(PyObject *module, PyObject *args)
{
    PyObject *objects[3];
    Py_ssize_t itemsize;
    Mapping maps[3] = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OnOO", &objects[0], &itemsize, &objects[1], &objects[2]))
        return NULL;
    if (itemsize <= 0 || itemsize % 8)
        return PyErr_Format(PyExc_ValueError, "items of %zd bytes: expected whole words", itemsize);
    bool ok = true;
    for (int i = 0; ok && i < 3; i++)
        ok = mapping_get(&maps[i], objects[i], i == 2, 0);
    ok = ok && gather_fits(maps, itemsize);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS gather_words(maps[0].view.buf, maps[1].view.buf,
                                            (uint64_t)maps[1].view.len / 8, (uint64_t)itemsize / 8,
                                            maps[2].view.buf);
        Py_END_ALLOW_THREADS
    }
    for (int i = 0; i < 3; i++)
        mapping_drop(&maps[i]);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
