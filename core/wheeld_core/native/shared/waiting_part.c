/* Waiting: who waits for which timer, by the timer's id.
 *
 * A dict would do, but for its price: an int made for each look, a hash of it, two lines of memory.
 * Here an id is its own key, and a look is one line. Whoever waits is counted as an entry of a dict
 * is. No function lets other code in before the table is whole again.
 *
 * Invariants: at most half of the places are taken, so that each probe ends at a free one. All
 * places between an id's home and its place are taken.
 */

typedef struct {
    uint64_t id;
    PyObject *who; /* NULL: the place is free */
} Wait;

typedef struct {
    PyObject_HEAD Wait *places; /* 1 << bits of them; NULL before the first */
    uint64_t count;
    unsigned bits;
} WaitingObject;

static PyTypeObject *waiting_type;

enum { WAITING_BITS = 4 };

static inline bool is_waiting(PyObject *object) { return Py_IS_TYPE(object, waiting_type); }

static inline uint64_t waiting_home(const WaitingObject *t, uint64_t id)
{
    return (id * 0x9e3779b97f4a7c15u) >> (64 - t->bits);
}

/* The place of an id, or the free one where it belongs. There are places. */
static inline Wait *waiting_place(const WaitingObject *t, uint64_t id)
{
    uint64_t last = (1ull << t->bits) - 1, at = waiting_home(t, id);
    while (t->places[at].who && t->places[at].id != id) /* bounded: half of them are free */
        at = (at + 1) & last;
    return &t->places[at];
}

/* Make room for one more. False: an error is set, and all is as it was. */
static bool waiting_fits(WaitingObject *t)
{
    if (wh_likely(t->places && 2 * (t->count + 1) <= 1ull << t->bits))
        return true;
    WaitingObject wider = {.bits = t->places ? t->bits + 1 : WAITING_BITS};
    if ((wider.places = PyMem_Calloc((size_t)1 << wider.bits, sizeof(Wait))) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (uint64_t i = 0; t->places && i < 1ull << t->bits; i++)
        if (t->places[i].who)
            *waiting_place(&wider, t->places[i].id) = t->places[i];
    PyMem_Free(t->places);
    t->places = wider.places, t->bits = wider.bits;
    return true;
}

/* False: an error is set. */
static bool waiting_put(WaitingObject *t, uint64_t id, PyObject *who)
{
    PyObject *before = NULL;
    bool fits;
    Held held;
    lock_alone(&held, (PyObject *)t);
    if ((fits = waiting_fits(t))) {
        Wait *place = waiting_place(t, id);
        before = place->who;
        t->count += before == NULL;
        *place = (Wait){id, Py_NewRef(who)};
    }
    lock_end(&held);
    Py_XDECREF(before);
    return fits;
}

/* Free a place, and move up who stands behind it and is not at home there. */
static inline void waiting_free(WaitingObject *t, uint64_t at)
{
    uint64_t last = (1ull << t->bits) - 1;
    for (uint64_t next = (at + 1) & last; t->places[next].who; next = (next + 1) & last) {
        uint64_t home = waiting_home(t, t->places[next].id);
        if (((next - home) & last) >= ((next - at) & last)) {
            t->places[at] = t->places[next];
            at = next;
        }
    }
    t->places[at].who = NULL;
    t->count--;
}

/* Who waits for a timer, as a new reference, or NULL; `out`: and waits no more. */
static inline PyObject *waiting_look(WaitingObject *t, uint64_t id, bool out)
{
    PyObject *who = NULL;
    Held held;
    lock_alone(&held, (PyObject *)t);
    Wait *place = t->count ? waiting_place(t, id) : NULL;
    if (place && place->who) {
        who = place->who;
        if (out)
            waiting_free(t, (uint64_t)(place - t->places));
        else
            Py_INCREF(who);
    }
    lock_end(&held);
    return who;
}

static int waiting_traverse(WaitingObject *t, visitproc visit, void *arg)
{
    for (uint64_t i = 0; t->places && i < 1ull << t->bits; i++)
        Py_VISIT(t->places[i].who);
    Py_VISIT(Py_TYPE(t));
    return 0;
}

static int waiting_clear(WaitingObject *t)
{
    Wait *places = t->places;
    uint64_t size = places ? 1ull << t->bits : 0;
    t->places = NULL, t->count = 0;
    for (uint64_t i = 0; i < size; i++)
        Py_XDECREF(places[i].who);
    PyMem_Free(places);
    return 0;
}

static void waiting_dealloc(WaitingObject *t)
{
    PyTypeObject *type = Py_TYPE(t);
    PyObject_GC_UnTrack(t);
    waiting_clear(t);
    type->tp_free(t);
    Py_DECREF(type);
}

/* A list of the ids or, `whole`, of who waits, in no order. */
static PyObject *waiting_list(WaitingObject *t, bool whole)
{
    PyObject *list = PyList_New(0);
    bool ok = list != NULL;
    Held held;
    lock_alone(&held, (PyObject *)t);
    for (uint64_t i = 0; ok && t->places && i < 1ull << t->bits; i++) {
        if (t->places[i].who == NULL)
            continue;
        PyObject *one =
            whole ? Py_NewRef(t->places[i].who) : PyLong_FromUnsignedLongLong(t->places[i].id);
        ok = one && PyList_Append(list, one) == 0;
        Py_XDECREF(one);
    }
    lock_end(&held);
    if (!ok)
        Py_CLEAR(list);
    return list;
}

static PyObject *waiting_values(WaitingObject *t, PyObject *unused)
{
    (void)unused;
    return waiting_list(t, true);
}

static PyObject *waiting_iter(WaitingObject *t)
{
    PyObject *ids = waiting_list(t, false), *iterator = ids ? PyObject_GetIter(ids) : NULL;
    Py_XDECREF(ids);
    return iterator;
}

static PyObject *waiting_find(WaitingObject *t, PyObject *const *args, Py_ssize_t n, bool out)
{
    uint64_t id;
    if (n < 1 || n > 2)
        return PyErr_Format(PyExc_TypeError, "expected an id, and a default");
    if (!parse_id(args[0], &id))
        return NULL;
    PyObject *who = waiting_look(t, id, out);
    return who ? who : Py_NewRef(n == 2 ? args[1] : Py_None);
}

/* get(id, default=None) */
static PyObject *waiting_get(WaitingObject *t, PyObject *const *args, Py_ssize_t n)
{
    return waiting_find(t, args, n, false);
}

/* pop(id, default=None) */
static PyObject *waiting_pop(WaitingObject *t, PyObject *const *args, Py_ssize_t n)
{
    return waiting_find(t, args, n, true);
}

static Py_ssize_t waiting_len(WaitingObject *t)
{
    Held held;
    lock_alone(&held, (PyObject *)t);
    Py_ssize_t count = (Py_ssize_t)t->count;
    lock_end(&held);
    return count;
}

static int waiting_contains(WaitingObject *t, PyObject *id)
{
    uint64_t number;
    if (!parse_id(id, &number))
        return -1;
    PyObject *who = waiting_look(t, number, false);
    Py_XDECREF(who);
    return who != NULL;
}

/* clang-format off */
static PyMethodDef waiting_methods[] = {
    {"get", (PyCFunction)(void (*)(void))waiting_get, METH_FASTCALL, NULL},
    {"pop", (PyCFunction)(void (*)(void))waiting_pop, METH_FASTCALL, NULL},
    {"values", (PyCFunction)waiting_values, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};
/* clang-format on */

static PyType_Slot waiting_slots[] = {{Py_tp_dealloc, waiting_dealloc},
                                      {Py_tp_traverse, waiting_traverse},
                                      {Py_tp_clear, waiting_clear},
                                      {Py_tp_iter, waiting_iter},
                                      {Py_sq_length, waiting_len},
                                      {Py_sq_contains, waiting_contains},
                                      {Py_tp_methods, waiting_methods},
                                      {Py_tp_doc, "Who waits for which timer, by its id."},
                                      {0, NULL}};
static PyType_Spec waiting_spec = {"wheeld_core._native.Waiting", sizeof(WaitingObject), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, waiting_slots};
