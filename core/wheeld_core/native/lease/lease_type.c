/* The type of Lease. */

LOCKED_ONE(lease_lock, LeaseObject, lease_try_acquire)
LOCKED_ONE(lease_lock, LeaseObject, lease_take_token)
LOCKED_ONE(lease_lock, LeaseObject, lease_release)
LOCKED_ONE(lease_lock, LeaseObject, lease_release_token)
LOCKED_ONE(lease_lock, LeaseObject, lease_renew)
LOCKED_ONE(lease_lock, LeaseObject, lease_enter)
LOCKED_ONE(lease_lock, LeaseObject, lease_look)
LOCKED_ONE(lease_lock, LeaseObject, lease_leave)
LOCKED_ONE(lease_lock, LeaseObject, lease_seen)
LOCKED_FAST(lease_lock, LeaseObject, lease_sleep)
LOCKED_GET(lease_lock, LeaseObject, lease_held)
LOCKED_GET(lease_lock, LeaseObject, lease_token)

#define LEASE_SEATS (1u << WH_TICKET_SEATS_BITS)

/* Lease(worker, name, key, seats, span_ns, semaphore) */
static int lease_init(LeaseObject *l, PyObject *args, PyObject *kwargs)
{
    PyObject *worker, *name, *key;
    unsigned int seats;
    long long span;
    int semaphore;
    uint64_t hash = 0, other = 0;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!UOILp:Lease", worker_type, &worker, &name, &key, &seats, &span,
                          &semaphore))
        return -1;
    if (key != Py_None && !key_hash_object(key, &hash, &other))
        return -1;
    if (l->worker || seats < 1 || seats > LEASE_SEATS || span <= 0) {
        PyErr_SetString(PyExc_ValueError, "lease: out of range, or already initialised");
        return -1;
    }
    if ((l->holds = calloc(seats, sizeof *l->holds)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    l->worker = (WorkerObject *)Py_NewRef(worker);
    l->name = Py_NewRef(name);
    l->key = Py_NewRef(key);
    l->slice_ns = 250000000;
    l->seats = seats, l->span = span, l->semaphore = semaphore;
    return 0;
}

static int lease_traverse(LeaseObject *l, visitproc visit, void *arg)
{
    Py_VISIT(l->worker);
    Py_VISIT(l->key);
    Py_VISIT(Py_TYPE(l));
    return 0;
}

static void lease_dealloc(LeaseObject *l)
{
    PyObject_GC_UnTrack(l);
    Py_CLEAR(l->worker);
    Py_CLEAR(l->name);
    Py_CLEAR(l->key);
    free(l->holds);
    PyTypeObject *type = Py_TYPE(l);
    type->tp_free(l);
    Py_DECREF(type);
}

static PyMethodDef lease_methods[] = {
    {"try_acquire", (PyCFunction)LOCKED(lease_try_acquire), METH_NOARGS,
     "try_acquire()\n--\n\n"
     "Take it if it is free and nobody waits for it.\n\n"
     "Returns\n-------\nbool\n    False: it is held, by this object or another one, or it is the turn\n"
     "    of one who waits.\n\n"
     "Raises\n------\nKeysFull\n    There is no room for another lease.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nLock-free; a system call only to wake a waiter. Any thread. If its worker dies in this\n"
     "call, nobody holds it."},
    {"release", (PyCFunction)LOCKED(lease_release), METH_NOARGS,
     "release()\n--\n\n"
     "Give it back: what this object took last, if it holds several. It is the next waiter's at\n"
     "once.\n\n"
     "Returns\n-------\nbool\n    False: it was not held, or no longer. Another holder keeps it.\n\n"
     "Raises\n------\nDaemonNotRunning, ClientClosed, ForkedClient"},
    {"renew", (PyCFunction)LOCKED(lease_renew), METH_NOARGS,
     "renew()\n--\n\n"
     "Hold it for `seconds` from now on: all that this object holds.\n\n"
     "Returns\n-------\nbool\n    False: it is not held, or something of it no longer.\n\n"
     "Raises\n------\nDaemonNotRunning, ClientClosed, ForkedClient"},
    {"_take", (PyCFunction)LOCKED(lease_take_token), METH_NOARGS, NULL},
    {"_release", (PyCFunction)LOCKED(lease_release_token), METH_O, NULL},
    {"_enter", (PyCFunction)LOCKED(lease_enter), METH_NOARGS, NULL},
    {"_look", (PyCFunction)LOCKED(lease_look), METH_O, NULL},
    {"_leave", (PyCFunction)LOCKED(lease_leave), METH_O, NULL},
    {"_seen", (PyCFunction)LOCKED(lease_seen), METH_NOARGS, NULL},
    {"_sleep", FAST(LOCKED(lease_sleep)), METH_FASTCALL, NULL},
    {NULL}};

static PyGetSetDef lease_getset[] = {
    {"held", (getter)LOCKED(lease_held), NULL,
     "Whether this object holds it now. Asks the shared memory each time, and raises nothing:\n"
     "without a daemon, or in a forked child, it is not held.",
     NULL},
    {"token", (getter)LOCKED(lease_token), NULL,
     "A number that grows with each acquisition, by any worker; 0: this object has never held\n"
     "it. A resource that refuses smaller ones than it has seen is safe from late holders.",
     NULL},
    {NULL}};

static PyMemberDef lease_members[] = {
    {"_slice_ns", T_LONGLONG, offsetof(LeaseObject, slice_ns), 0, NULL}, {NULL}};

static PyType_Slot lease_slots[] = {{Py_tp_new, PyType_GenericNew},
                                    {Py_tp_init, lease_init},
                                    {Py_tp_dealloc, lease_dealloc},
                                    {Py_tp_traverse, lease_traverse},
                                    {Py_tp_methods, lease_methods},
                                    {Py_tp_getset, lease_getset},
                                    {Py_tp_members, lease_members},
                                    {Py_tp_doc, "The native half of wheeld_client.Lease."},
                                    {0, NULL}};
static PyType_Spec lease_spec = {"wheeld_core._native.Lease", sizeof(LeaseObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                 lease_slots};
