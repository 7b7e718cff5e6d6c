/* The trace segment: made by the supervisor, emptied by the recorder. The clock's side:
 * clock_part.c. */

static wh_cold bool parse_trace_sizes(unsigned int capacity, unsigned int ring_bits)
{
    if (capacity >= WH_SLAB_SLOTS && capacity <= WH_MAX_CAPACITY &&
        ring_bits >= WH_MIN_TRACE_BITS && ring_bits <= WH_MAX_TRACE_BITS)
        return true;
    PyErr_Format(PyExc_ValueError,
                 "trace of %u slots with 2**%u records: expected 2**%u to 2**%u records", capacity,
                 ring_bits, WH_MIN_TRACE_BITS, WH_MAX_TRACE_BITS);
    return false;
}

/* trace_bytes(capacity, ring_bits) -> size of the trace segment, bytes */
static wh_cold PyObject *native_trace_bytes(PyObject *module, PyObject *args)
{
    unsigned int capacity, ring_bits;
    (void)module;
    if (!PyArg_ParseTuple(args, "II", &capacity, &ring_bits) ||
        !parse_trace_sizes(capacity, ring_bits))
        return NULL;
    return PyLong_FromUnsignedLongLong(wh_trace_bytes(capacity, ring_bits));
}

/* create_trace(segment, capacity, ring_bits, token, position=0): fill a zeroed segment. */
static wh_cold PyObject *native_create_trace(PyObject *module, PyObject *args)
{
    PyObject *segment;
    unsigned int capacity, ring_bits;
    unsigned long long token, position = 0;
    Mapping map = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OIIK|K", &segment, &capacity, &ring_bits, &token, &position) ||
        !parse_trace_sizes(capacity, ring_bits) ||
        !mapping_get(&map, segment, true, wh_trace_bytes(capacity, ring_bits)))
        return NULL;
    wh_trace_create(map.view.buf, capacity, ring_bits, token, position);
    mapping_drop(&map);
    Py_RETURN_NONE;
}

/* Map a ready and sound trace segment, writable: head and tail are in it. */
static wh_cold bool mapping_get_trace(Mapping *m, PyObject *object)
{
    if (!mapping_get_kind(m, object, WH_KIND_TRACE, "trace"))
        return false;
    if ((uint64_t)m->view.len >= sizeof(wh_trace_seg) &&
        wh_trace_sound(m->view.buf, (uint64_t)m->view.len))
        return true;
    PyErr_SetString(PyExc_ValueError, "trace segment: its sizes do not match its length");
    mapping_drop(m);
    return false;
}

static wh_cold PyObject *no_such_position(const wh_trace_seg *seg, unsigned long long position)
{
    return PyErr_Format(PyExc_ValueError, "position %llu of the trace: expected %llu to %llu",
                        position, (unsigned long long)wh_load_relaxed(&seg->rec_head),
                        (unsigned long long)wh_load_relaxed(&seg->rec_tail));
}

/* trace_take(segment, position, out) -> records copied from `position` on */
static wh_cold PyObject *native_trace_take(PyObject *module, PyObject *args)
{
    PyObject *segment, *buffer, *result = NULL;
    unsigned long long position;
    Mapping map = {0}, out = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OKO", &segment, &position, &buffer) ||
        !mapping_get_trace(&map, segment))
        return NULL;
    if (mapping_get(&out, buffer, true, 0)) {
        uint64_t most = (uint64_t)out.view.len / sizeof(wh_trace_record), count;
        Py_BEGIN_ALLOW_THREADS count = wh_trace_take(map.view.buf, position, out.view.buf, most);
        Py_END_ALLOW_THREADS result = count == UINT64_MAX ? no_such_position(map.view.buf, position)
                                                          : PyLong_FromUnsignedLongLong(count);
    }
    mapping_drop(&out);
    mapping_drop(&map);
    return result;
}

static bool parse_trace_position(PyObject *args, Mapping *map, unsigned long long *position)
{
    PyObject *segment;
    return PyArg_ParseTuple(args, "OK", &segment, position) && mapping_get_trace(map, segment);
}

/* trace_wait(segment, position) -> is there more than that? Sleeps until the clock has recorded
 * something behind `position`, or for no reason; not when that is there already. */
static wh_cold PyObject *native_trace_wait(PyObject *module, PyObject *args)
{
    unsigned long long position;
    Mapping map = {0};
    (void)module;
    if (!parse_trace_position(args, &map, &position))
        return NULL;
    wh_trace_seg *seg = map.view.buf;
    Py_BEGIN_ALLOW_THREADS uint32_t seen;
    if (wh_trace_may_sleep(seg, position, &seen))
        syscall(SYS_futex, &seg->rings, FUTEX_WAIT, seen, NULL, NULL, 0);
    wh_trace_awake(seg);
    Py_END_ALLOW_THREADS bool more = wh_load_relaxed(&seg->rec_tail) != position;
    mapping_drop(&map);
    return PyBool_FromLong(more);
}

/* trace_release(segment, position): what is before it is kept */
static wh_cold PyObject *native_trace_release(PyObject *module, PyObject *args)
{
    unsigned long long position;
    Mapping map = {0};
    (void)module;
    if (!parse_trace_position(args, &map, &position))
        return NULL;
    bool released = wh_trace_release(map.view.buf, position);
    if (!released)
        no_such_position(map.view.buf, position);
    mapping_drop(&map);
    if (!released)
        return NULL;
    Py_RETURN_NONE;
}
