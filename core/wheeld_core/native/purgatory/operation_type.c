/* The type of Operation: what Python sees of it. */

static PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    OperationObject *op = (OperationObject *)type->tp_alloc(type, 0);
    if (op) {
        op->timeout = -1;
        op->place = WH_NIL;
    }
    return (PyObject *)op;
}

static int operation_init(OperationObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout;
    double seconds = -1;
    if (wh_likely(kwargs == NULL && PyTuple_GET_SIZE(args) == 1)) /* one for each request */
        timeout = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:DelayedOperation", names, &timeout))
        return -1;
    if (timeout != Py_None && !parse_seconds(timeout, &seconds, "timeout"))
        return -1;
    if (op->state > OP_NEW) { /* by now: reading it may have run code of its own */
        PyErr_SetString(PyExc_ValueError, "this operation is already in a purgatory");
        return -1;
    }
    op->timeout = seconds;
    op->state = OP_NEW;
    return 0;
}

static int operation_traverse(OperationObject *op, visitproc visit, void *arg)
{
    if (op->state != OP_WAITING)
        Py_VISIT(op->purgatory);
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static int operation_clear(OperationObject *op)
{
    Held held;
    operation_lock_to_read(&held, op);
    if (op->state != OP_WAITING) /* else the links need it; the worker's clear unlinks */
        Py_CLEAR(op->purgatory);
    lock_end(&held);
    return 0;
}

static void operation_dealloc(OperationObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_CLEAR(op->purgatory);
    if (op->watches != op->few)
        free(op->watches);
    PyTypeObject *type = Py_TYPE(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Does the operation wait in the parent of this forked child? If so, an error is set. */
static bool operation_is_parents(OperationObject *op)
{
    if (op->purgatory == NULL || !(op->purgatory->lost || worker_is_forked(op->purgatory->worker)))
        return false;
    if (op->state != OP_WAITING)
        return false;
    PyErr_SetString(errors.forked_client, "this operation waits in the parent process");
    return true;
}

static PyObject *operation_force_complete(OperationObject *op, PyObject *unused)
{
    (void)unused;
    if (op->state == OP_UNMADE) {
        operation_explain_unmade(op);
        return NULL;
    }
    if (operation_is_parents(op))
        return NULL;
    int done = operation_complete(op, false);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *operation_cancel(OperationObject *op, PyObject *unused)
{
    (void)unused;
    if (operation_is_parents(op))
        return NULL;
    if (op->state != OP_WAITING)
        Py_RETURN_FALSE;
    PurgatoryObject *p = (PurgatoryObject *)Py_NewRef(op->purgatory);
    operation_withdraw(op);
    PyObject *told = p->tells
                         ? PyObject_CallMethodOneArg((PyObject *)p, name_cancelled, (PyObject *)op)
                         : Py_NewRef(Py_None);
    Py_DECREF(p);
    Py_XDECREF(told);
    return told ? Py_NewRef(Py_True) : NULL;
}

static PyObject *operation_get_state(OperationObject *op, void *unused)
{
    static const char *const names[] = {"new", "new", "waiting", "completed", "cancelled"};
    (void)unused;
    return PyUnicode_FromString(names[op->state]);
}

static PyObject *operation_get_timeout(OperationObject *op, void *unused)
{
    (void)unused;
    if (op->timeout < 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(op->timeout);
}

static PyObject *operation_get_is_completed(OperationObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(op->state == OP_COMPLETED);
}

static PyObject *operation_get_is_expired(OperationObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(op->expired);
}

static PyMethodDef operation_methods[] = {
    {"force_complete", (PyCFunction)LOCKED(operation_force_complete), METH_NOARGS,
     "force_complete()\n--\n\n"
     "Complete the operation: it leaves the wheel and all its keys, and its callbacks run.\n\n"
     "Returns\n-------\nbool\n    True for exactly one caller; False: it was completed or cancelled "
     "before.\n\nNotes\n-----\nAny thread."},
    {"cancel", (PyCFunction)LOCKED(operation_cancel), METH_NOARGS,
     "cancel()\n--\n\n"
     "Take a waiting operation out of the wheel and all its keys; no callback of it runs.\n\n"
     "Returns\n-------\nbool\n    False: it does not wait (any more).\n\nNotes\n-----\nAny thread."},
    {"_settle", (PyCFunction)LOCKED(operation_settle_method), METH_NOARGS, NULL},
    {NULL}};

static PyGetSetDef operation_getset[] = {
    {"timeout", (getter)LOCKED(operation_get_timeout), NULL,
     "Seconds, or None: it waits without end.", NULL},
    {"state", (getter)LOCKED(operation_get_state), NULL,
     "'new', 'waiting', 'completed' or 'cancelled'.", NULL},
    {"is_completed", (getter)LOCKED(operation_get_is_completed), NULL,
     "Is it completed, by its condition or by its timeout?", NULL},
    {"is_expired", (getter)LOCKED(operation_get_is_expired), NULL,
     "Was it completed by its timeout?", NULL},
    {NULL}};

static PyType_Slot operation_slots[] = {{Py_tp_new, operation_new},
                                        {Py_tp_init, LOCKED(operation_init)},
                                        {Py_tp_dealloc, operation_dealloc},
                                        {Py_tp_traverse, operation_traverse},
                                        {Py_tp_clear, operation_clear},
                                        {Py_tp_methods, operation_methods},
                                        {Py_tp_getset, operation_getset},
                                        {Py_tp_doc, "The native half of DelayedOperation."},
                                        {0, NULL}};
static PyType_Spec operation_spec = {"wheeld_core._native.Operation", sizeof(OperationObject), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                     operation_slots};
